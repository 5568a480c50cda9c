"""The engine: plans and their runs. Plain Python: no arrays, no torch, no Ray, no environments.

Read it in this order:

    plan        Plan, the immutable graph, its verbs and its edits
    graph       the paths of operators in a plan, and finding an operator by its path
    operator    the definition of an operator: `@operator`, `state()`, `context()`
    protocols   the optional members of operators, resources and workers, with their defaults
    context     the shared parts of a run: counters, records, the seed tree (`seeds`), the bell
    transforms  the operators behind `batch`, `flatten`, `take`, taps and breakpoints
    stages      Source and Chain: a running plan consists of stages, and a stage takes one step at a time
    merge       Merge and Fork: several streams as one, one stream for several readers
    calls       Call and Prefetch: work for one worker
    gather      GatherSync, GatherAsync: a part of the plan that runs on many workers (`subplan` there, `members` here)
    run         Run: takes steps, sleeps on one bell, saves and resumes (`state_diff`)

Besides: `futures` and `workers` (requests by `submit()`), `remote` (values that stay in another process), `queues`,
`schema` (columns and words of items, before a run), `meter` and `failure` (measurements and errors of an operator),
`ledger` (where the seconds of threads and processes went), `pickling`.
"""
