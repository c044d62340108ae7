"""Grants: the shares of devices that containers have, from Allocate to the container's end."""

from pyvgpu.deviceplugin.grants.grant import (
    ClaimResult as ClaimResult,
)
from pyvgpu.deviceplugin.grants.grant import (
    Grant as Grant,
)
from pyvgpu.deviceplugin.grants.grant import (
    GrantClaim as GrantClaim,
)
from pyvgpu.deviceplugin.grants.grant import (
    Owner as Owner,
)
from pyvgpu.deviceplugin.grants.grant import (
    dump as dump,
)
from pyvgpu.deviceplugin.grants.grant import (
    is_id as is_id,
)
from pyvgpu.deviceplugin.grants.grant import (
    load as load,
)
from pyvgpu.deviceplugin.grants.grant import (
    new_id as new_id,
)
