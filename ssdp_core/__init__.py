"""The mathematics of semi-sensitive differential privacy. README.md in this folder is the map."""

from ssdp_core.accounting import (
    Charge,
    ZcdpFilter,
    delta_from_rho,
    epsilon_from_rho,
    rho_from_epsilon,
)
from ssdp_core.columns import BinnedColumn, CategoricalColumn, Encoding, Role
from ssdp_core.curator import Curator, Question, ThresholdInstance
from ssdp_core.domain import PrivateDomain, PrivateFeatures
from ssdp_core.engine import Engine, Evaluation, ExactSum, InMemoryEngine
from ssdp_core.errors import (
    BudgetExhaustedError,
    OutOfUpdatesError,
    SsdpError,
    TranscriptMismatchError,
)
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows
from ssdp_core.losses import Loss, MarginLoss, MultinomialLoss, loss_by_name
from ssdp_core.noise import NoiseSource
from ssdp_core.oracles import (
    AnsweredGradients,
    BeliefGradients,
    GradientOracle,
    InexactGradientSolver,
    MeasuredGradients,
    Solver,
    SubgradientSolver,
    inexact_gradient_method,
    projected_subgradient,
    run_solver,
)
from ssdp_core.paper_parameters import PvmwParameters, paper_parameters, solved_parameters
from ssdp_core.problems import LinearErm, PrivateTarget, Problem, PublicTarget
from ssdp_core.pvmw import Answer, PrivateVectorAnswerer
from ssdp_core.queries import (
    GradientQuery,
    LinearVectorQuery,
    MarginalQuery,
    TabulatedQuery,
    count_query,
    mean_query,
)
from ssdp_core.transcript import InMemoryTranscript, Release, Transcript

__all__ = [
    "Answer",
    "AnsweredGradients",
    "BeliefGradients",
    "BinnedColumn",
    "BudgetExhaustedError",
    "CategoricalColumn",
    "Charge",
    "CsrFeatures",
    "Curator",
    "DenseFeatures",
    "Encoding",
    "Engine",
    "Evaluation",
    "ExactSum",
    "GradientOracle",
    "GradientQuery",
    "InMemoryEngine",
    "InMemoryTranscript",
    "InexactGradientSolver",
    "LinearErm",
    "LinearVectorQuery",
    "Loss",
    "MarginLoss",
    "MarginalQuery",
    "MeasuredGradients",
    "MultinomialLoss",
    "NoiseSource",
    "OutOfUpdatesError",
    "PrivateDomain",
    "PrivateFeatures",
    "PrivateTarget",
    "PrivateVectorAnswerer",
    "Problem",
    "PublicRows",
    "PublicTarget",
    "PvmwParameters",
    "Question",
    "Release",
    "Role",
    "Solver",
    "SsdpError",
    "SubgradientSolver",
    "TabulatedQuery",
    "ThresholdInstance",
    "Transcript",
    "TranscriptMismatchError",
    "ZcdpFilter",
    "count_query",
    "delta_from_rho",
    "epsilon_from_rho",
    "inexact_gradient_method",
    "loss_by_name",
    "mean_query",
    "paper_parameters",
    "projected_subgradient",
    "rho_from_epsilon",
    "run_solver",
    "solved_parameters",
]
