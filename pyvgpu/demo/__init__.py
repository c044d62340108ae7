"""Live demonstration of quota enforcement: six tenants of one simulated device.

``observations`` has the data types, ``assertions`` evaluates claims, and ``demo_steps`` decides
the next step; all of these are pure. ``tenant_runs`` starts the tenants with the real `pyvgpu
run`, ``sampler`` reads the ledgers and queries the driver, ``live_display`` shows both, and
``quota_demo`` calls all of these.
"""
