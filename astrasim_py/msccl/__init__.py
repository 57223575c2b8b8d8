"""MSCCL-IR, the XML that MSCCL-style runtimes execute: in and out.

Other tools, and their limits:

* msccl-tools: ``Check()`` runs before lowering, is optional, prints instead of failing; it accepts programs whose XML
  has 176 races, and some examples emit XML although their sums are wrong
* MSCCL-XML-Verifier (C++): no reductions, no in-place buffers, unbounded connections; a deadlock is found after 100 ms
* MSCCL++: ``check()`` is empty; its JSON plans (one-sided puts, semaphores) are not read here
* collectiveapi's converter to Chakra: checks nothing, knows ``s r rrc nop``, requires equal source and destination
  offsets: it converts 3 of 20 programs of msccl-tools; its traces are read here, in both dialects
"""
