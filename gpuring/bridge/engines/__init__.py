"""The engines that carry the bytes of frames from one host to another."""
