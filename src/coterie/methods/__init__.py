"""The methods, one file each, and their registry."""

from coterie.method import Method
from coterie.methods.centralised import Centralised
from coterie.methods.fccl import FCCL
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddf import FedDF, FedDFClient
from coterie.methods.fedfusion import FedFusion
from coterie.methods.fedmatch import FedMatchPublic
from coterie.methods.fedmd import FedMD
from coterie.methods.fedmmd import FedMMD, TwoStreamL2
from coterie.methods.fedprox import FedProx
from coterie.methods.fml import FML
from coterie.methods.local import Local
from coterie.methods.rcfl import RCFLPublic
from coterie.methods.split_metadata import SplitMetadata
from coterie.settings import Registry

__all__ = [
    "FCCL",
    "FML",
    "METHODS",
    "Centralised",
    "FedAvg",
    "FedDF",
    "FedDFClient",
    "FedFusion",
    "FedMD",
    "FedMMD",
    "FedMatchPublic",
    "FedProx",
    "Local",
    "RCFLPublic",
    "SplitMetadata",
    "TwoStreamL2",
]

METHODS: Registry[Method] = Registry(
    "method",
    Method,
    [
        FedAvg,
        FedProx,
        FedMMD,
        TwoStreamL2,
        FedFusion,
        FML,
        SplitMetadata,
        FCCL,
        FedMD,
        FedDF,
        FedDFClient,
        RCFLPublic,
        FedMatchPublic,
        Local,
        Centralised,
    ],
)
