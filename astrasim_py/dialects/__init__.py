"""Dialects: rules that only some runs follow (docs/dialects.md).

Each stands in a folder, of which a run without it imports nothing. Its parts; those not there are not needed, or are a
few lines of the common modules. A name may go on, as in ``kernel_rates``.

* rules: its limits; what it excludes is in ``system/compatible.py``
* lower: its part of the plan, called by ``system``
* simpy: a subclass of ``Simulation``, named by a row of ``engine/simpy/dialects.py``
* kernel: its part of the compiled engine; ``optional("module:name")`` in the common modules names it, and it is
  compiled with the others for the runs that need one of them
* check: verification beyond that of algorithms

To remove a dialect, delete its folder, its keys (``system/machine_models.py``, ``system/semantics.py``,
``system/noise.py``, ``topology``), its section in docs/dialects.md, its line here, and the calls that the line names:

* astra_sim: kernel, lower, simpy; called from engine/compiled/waves, engine/simpy/dialects, system/rank_programs
* chunks: kernel, lower, simpy; called from astra_sim/planner, engine/compiled/dispatch, engine/simpy/dialects,
  preparation/by_dimension
* detours: kernel, simpy; called from engine/compiled/dispatch, engine/simpy/dialects
* fluid: kernel, kernel_ends, kernel_paths, kernel_rates, rules, simpy; called from dialects/link_events/kernel,
  dialects/link_events/simpy, engine/compiled/kernel, engine/compiled/links, engine/simpy/dialects, system/lowering
* library: lower_choice, lower_connections, lower_costs, simpy; called from dialects/queue_pairs/lower,
  dialects/thread_blocks/lower, dialects/thread_blocks/simpy, engine/choose, engine/simpy/dialects, system/bound,
  system/lowering, system/plan_notes, system/rank_programs
* link_events: kernel, simpy; called from engine/compiled/kernel, engine/simpy/dialects
* nic: kernel, simpy; called from engine/compiled/arrivals, engine/compiled/links, engine/simpy/dialects
* own_model: simpy; called from engine/simpy/dialects, engine/simulation, preparation/prepare
* plans: lower; called from dialects/library/lower_costs
* queue_pairs: kernel, lower, simpy; called from dialects/plans/lower, engine/compiled/routes,
  engine/simpy/dialects, system/rank_programs
* switches: lower, simpy; called from engine/simpy/dialects, system/lowering
* thread_blocks: kernel, lower, simpy; called from dialects/library/lower_costs, engine/compiled/dispatch,
  engine/compiled/kernel, engine/simpy/dialects, system/rank_programs
* tiles: check, kernel, lower, simpy; called from cli/check, engine/compiled/dispatch, engine/compiled/kernel,
  engine/simpy/dialects, runs/task, system/lowering, system/rank_programs
"""
