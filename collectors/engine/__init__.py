"""The threads that all collectors of a process share, and one instance of a collector.

Shared by all:

    engine          holds all that follows, and the appender
    loops           a thread that repeats one turn
    stream_loop     reads the control topic and all order streams
    catch_up        reads those that are far behind
    log_end_loop    watches the ends of all logs
    clock           ticks
    chores          what blocks: opening instances, filling holes, checking topic ids
    skips           fills holes of logs

One instance:

    instance            its life: open, begun, over
    core_runner         events in, core, actions out
    assignment          its collector, plan and Kafka partitions
    own_stream          appends, their acknowledgements, and reading them back
    advertisement       what it says of itself on the control topic
    status              what `/status` shows of it
"""
