"""The core: sessions, isolation, retry. Pure: it awaits its ports (`interlock.ports`) and nothing else."""
