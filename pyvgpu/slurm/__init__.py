"""Slurm: the quota of a job that has shards of a GPU (gres/shard).

shards        the quota that shards give; what a step asks for; pure
step          the program that the SPANK plugin (csrc/slurm) runs for each step
job_holder    the process that holds a job's reservation on this node for its steps
step_cgroups  leaves the cgroups of the step that started that process

``cli/slurm_plugin.py`` compiles the plugin for the Slurm of this machine.
"""
