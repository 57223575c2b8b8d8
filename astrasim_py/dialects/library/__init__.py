"""Costs of a communication library: counters, connections with slots and pace, protocols and their choice.

Three features charge messages by two mechanisms, ``Connections`` and ``BlockSteps`` of ``system/programs.py``:
``msccl`` and profiles by connections, profiles with costs of given programs by the steps of thread blocks.

* slots of a connection, freed by a node that ends: msccl and given programs
* pace: ``channel_bandwidth`` of a connection; ``channel_rate`` of one; ``rate`` of a step
* latency by protocol: msccl adds one per hop; the others replace latency and rate of links
* least time between posts (``peer``), and the nodes launch and copy: profiles; given programs have a launch
* a link is held for bytes / B at the end of the pace (msccl), a little at a time during the pace (profiles), or from
  the beginning of the step, reserved (given programs: a step knows its end, and that of its message, as it begins)
* a receiver begins when the message is there; of given programs when its head is there

Links are held differently because it is measured: if messages of a profile held links as those of msccl do, the median
error of all_to_all on 8 H100 would rise from 7.7 % to 9.5 % (264 rows).
"""
