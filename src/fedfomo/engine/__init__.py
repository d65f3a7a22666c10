"""The checkpointed run and its storage: run folder, checkpoints, tensor files."""
