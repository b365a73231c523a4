"""The values of the domain. They check their own validity and do nothing else."""
