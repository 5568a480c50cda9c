"""The engine: plans, and what runs them. Plain Python: no arrays, no torch, no Ray, no environments.

Read it in this order:

    plan        Plan, the immutable graph, its verbs and its edits
    graph       the paths of operators in a plan, and finding an operator by its path
    operator    what an operator is: `@operator`, `state()`, `context()`
    protocols   what operators, resources and workers may have: each member once, with its default
    context     what a run shares with its operators: counters, records, the seed tree (`seeds`), the bell
    transforms  the operators behind `filter`, `combine`, `batch`, `flatten`, `take`
    stages      Source and Chain: a running plan consists of stages, and a stage takes one step at a time
    merge       Merge and Fork: several streams as one, one stream for several readers
    calls       Call and Prefetch: work that is sent to a worker
    gather      GatherSync, GatherAsync: a part of the plan that runs on many workers (`subplan` there, `members` here)
    run         Run: takes steps, sleeps on one bell, saves and resumes (`state_diff`)

Beside these: `futures` and `workers` (who is asked by `submit()`), `remote` (a value that stayed where it was made),
`queues`, `schema` (what is known of items before a run), `meter` (what was measured of an operator), `pickling`.
"""
