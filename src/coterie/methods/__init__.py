"""The methods, one file each, and their registry."""

from coterie.method import Method
from coterie.methods.centralised import Centralised
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedfusion import FedFusion
from coterie.methods.fedmmd import FedMMD, TwoStreamL2
from coterie.methods.fedprox import FedProx
from coterie.methods.fml import FML
from coterie.methods.local import Local
from coterie.methods.split_metadata import SplitMetadata
from coterie.named import Registry

__all__ = ["FML", "METHODS", "Centralised", "FedAvg", "FedFusion", "FedMMD", "FedProx", "Local", "SplitMetadata", "TwoStreamL2"]

METHODS: Registry[Method] = Registry(
    "method", Method, [FedAvg, FedProx, FedMMD, TwoStreamL2, FedFusion, FML, SplitMetadata, Local, Centralised]
)
