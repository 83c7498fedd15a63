"""The methods, one file each, and their registry."""

from coterie.method import Method
from coterie.methods.centralised import Centralised
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.local import Local
from coterie.named import Registry

__all__ = ["METHODS", "Centralised", "FedAvg", "FedProx", "Local"]

METHODS: Registry[Method] = Registry("method", Method, [FedAvg, FedProx, Local, Centralised])
