"""Questions across ranks whose traces stay where they were read: only collectives and summaries travel.

One process, here the coordinator, asks all ranks the same in turn, and works with what they say:

1. A rank tells its `Skeleton`: its collectives, one event of each lane, its step marks. All skeletons together are a
   trace, from which clocks and matches are found as always.
2. It is told how to place its times on the common clock, and when the last participant of each of its collectives
   arrived. With that it builds its own dependency graph, in which other ranks are nothing but the times of joins.
   Every binding and every lag in it is what it would be in the graph of all ranks, for both are local to a vertex;
   joins alone are bound by others.
3. The critical path runs back inside one rank to a join, and from there on the rank that arrived last: `path`.
4. Replay is a longest path. Between joins it is linear in (max, +), so that a rank's part of it is a list of edges
   between joins: `reduced`. What a late rank costs is a longest path over these alone: `late`.
"""
