"""Names that a user chooses from: engines, record levels, network models, protocols, collectives by dimension."""

AUTO, SIMPY, COMPILED, BOTH = "auto", "simpy", "compiled", "both"
#: ``auto`` picks one of the next two; ``both`` runs them and compares their records.
ENGINES = (AUTO, SIMPY, COMPILED, BOTH)
#: Suffix of the name of the engine in the records of a folded run.
FOLDED = "+fold"

#: Record levels, each including the one before it.
LEVELS = ("summary", "links", "nodes", "messages")

#: Network models: links that serve one message at a time; links that share bandwidth; all models.
QUEUEING_MODELS = ("cut_through", "store_and_forward")
FLUID = "fluid"
NETWORK_MODELS = (*QUEUEING_MODELS, "analytical", FLUID)

#: Protocols of NCCL-like libraries.
PROTOCOLS = ("Simple", "LL", "LL128")

#: Plans of collectives by dimension: phases of an all_reduce, order of the dimensions, sizes of the chunks, and the
#: collectives that are planned so.
ALL_REDUCE_WAYS = ("local_first", "baseline", "two_way")
DIMENSION_ORDERS = ("fixed", "themis")
CHUNK_ROUNDINGS = ("exact", "rounded_up")
BY_DIMENSION = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")

#: Collectives with a defined result (`collectives.collective`).
COLLECTIVE_NAMES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier",
)  # fmt: skip

#: The protocol that is simulated to be the fastest; what stands for a reduction in a switch.
FASTEST, SWITCH = "fastest", "switch"

#: Algorithms that a table of a profile may choose.
LIBRARY_ALGORITHMS = ("ring", "tree", SWITCH)

#: Libraries that can be named in place of a builder: their choice of algorithm and protocol is simulated.
LIBRARIES = ("nccl",)
#: Titles of a scenario or a figure that say that it has none.
NO_TITLE = ("", "none")
#: Runtimes that MSCCL-IR is written for (`msccl.well_formed.RUNTIMES`).
MSCCL_DIALECTS = ("classic", "azure", "rccl")
#: Analytical backends of ASTRA-sim; the last is an unmerged branch, for any number of dimensions.
ASTRA_SIM_BACKENDS = ("congestion_unaware", "congestion_aware", "congestion_aware_multidim")
#: Groups of items with blocks of unequal sizes: this and the number of the item.
BLOCKS = "blocks-"
