"""Device order where there is no device: the driver is a fake, or done at once."""
