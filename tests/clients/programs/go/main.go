// SPDX-License-Identifier: Apache-2.0

// Prints the devices and their processes, as go-nvml reports them, as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type process struct {
	Pid    uint32
	Memory uint64
	Name   string
}

type device struct {
	UUID      string
	Memory    [3]uint64
	Load      uint32
	Processes []process
	Set       nvml.Return
}

func check(result nvml.Return) {
	if result != nvml.SUCCESS {
		fmt.Fprintln(os.Stderr, nvml.ErrorString(result))
		os.Exit(1)
	}
}

func read_all(index int) (seen device) {
	handle, result := nvml.DeviceGetHandleByIndex(index)
	check(result)
	seen.UUID, result = handle.GetUUID()
	check(result)
	memory, result := handle.GetMemoryInfo_v2()
	check(result)
	seen.Memory = [3]uint64{memory.Total, memory.Used, memory.Free}
	rates, result := handle.GetUtilizationRates()
	check(result)
	seen.Load = rates.Gpu
	running, result := handle.GetComputeRunningProcesses()
	check(result)
	for _, each := range running {
		name, result := nvml.SystemGetProcessName(int(each.Pid))
		check(result)
		seen.Processes = append(seen.Processes, process{each.Pid, each.UsedGpuMemory, name})
	}
	seen.Set = handle.SetPersistenceMode(nvml.FEATURE_DISABLED)
	return seen
}

func main() {
	check(nvml.Init())
	count, result := nvml.DeviceGetCount()
	check(result)
	devices := []device{}
	for index := 0; index < count; index++ {
		devices = append(devices, read_all(index))
	}
	if err := json.NewEncoder(os.Stdout).Encode(devices); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
