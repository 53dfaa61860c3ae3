"""FedTailor beside other simulators and beside plain PyTorch, on one machine in one run."""
