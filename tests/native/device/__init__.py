"""Device order without a device: the driver is a fake, and in some tests its GPU is done at
once."""
