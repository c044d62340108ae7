module seen

go 1.20

require github.com/NVIDIA/go-nvml v0.12.9-0
