"""Live demonstration of quota enforcement: six tenants of one simulated device.

``facts`` has the data types of observations, ``claims`` evaluates them and ``script`` decides the
next step, all by pure functions. ``stage`` starts the tenants by the real `pyvgpu run`, ``play``
carries out the script, ``meter`` reads the ledgers and queries the driver, ``show`` draws.
"""
