"""Device order: how a stream is made to wait for what other peers' GPUs still have to do.

Host order (the atomics of core/) and device order (streams) meet in four places: claim, publish,
acquire, release.  Those go through `gpuring._core.DeviceOrder`, which calls the driver, and where
one call is not enough through the methods of the classes here: `device.DeviceSync` is the
interface, `event.py` and `timeline.py` are the only places of the package's Python that record and
wait.  A ring in host memory has none: the CPU stores its fences itself.

A fence value is promised before its operation is enqueued, and made visible to others after it.  So
whoever is asked to wait for a value waits for something that is already in some stream.
"""
