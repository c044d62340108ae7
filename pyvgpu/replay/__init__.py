"""Replays recorded launches on a simulated device, to say what a share would cost a job."""
