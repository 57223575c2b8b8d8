"""The compiled engine: a Plan as flat arrays, and a kernel over them.

It does event for event what the SimPy engine does, in other words:

================================  ===================================================================================
SimPy engine                      compiled engine
================================  ===================================================================================
``ProgramLists``                  ``TEMPLATE`` and its ``NODE`` rows: a program as it is, shared by its blocks
``Graph``, ``WorkloadGraph``      ``BLOCK``: a template that a rank walks; of workloads the first ones
``Graph.less_need``, ``release``  `needs.lose_need`, `needs.release`
``Graph.complete``                `dispatch.complete`, of what `events.complete_next` has put into ``DUE``
``Npu.dispatch``, a wave          `kernel.next_wave`, `waves.make_wave`, ``WAVE``
``Npu.splice``                    `blocks.splice`
``OpenCall``                      ``PROGRESS`` of a ``CALL``
``Communicator``, ``Mailbox``     the partner of a ``NODE``; ``CHANNEL`` and ``MATCH`` of several messages
``Message``, ``At``, ``Signal``   ``EVENT``; its kind says what it is (`records.KINDS`)
``LinkRequest``, a link's queue   `links.take_link`, ``WAIT``; under store_and_forward the line of a ``LINK``
``Network.hand_over``             `arrivals.message_arrives`
``Simulation.number``             ``issued`` of the state
``RankChunk``, ``Queue``          ``RUN``, ``QUEUE``; and ``SHARE``, a rank's part of a collective
``Gates``                         ``TILES``
``CountingGraph``                 ``COUNTING``, ``COUNTER``
``ConnectedGraph``                ``MESSAGE_SLOT``
``BlockGraph``, ``Booking``       ``STEP_MESSAGE``, `links.reserve`
``SharedLink``, ``Flow``          ``SHARED_LINK``, ``FLOW``
================================  ===================================================================================
"""
