"""The engine: plans and their runs. Plain Python: no arrays, no torch, no Ray, no environments.

`README.md` in this folder says what a step is. Read the kernel in this order:

    plan        Plan, the immutable graph, its verbs and its edits
    graph       the paths of operators in a plan, and finding an operator by its path
    operator    the definition of an operator: `@operator`, `state()`, `context()`
    protocols   the optional members of operators, resources and workers, with their defaults; what a journal decides
    context     the shared parts of a run: counters, records, the bell
    seeds       the seed tree, from which all random streams come
    transforms  the operators behind `batch`, `flatten`, `take`, taps and breakpoints
    stages      Source and Chain: a running plan consists of stages, and a stage takes one step at a time
    merge       Merge and Fork: several streams as one, one stream for several readers
    labels      the names that keep several learners apart in results
    run         Run: takes steps, sleeps on one bell, saves and resumes
    state_diff  what a saved state and a plan have in common
    held        what an operator holds besides its fields, and what of it a state would lose
    schema      columns and words of items, as far as they are known before a run
    meter       the measurements of one running operator, and the handling of its errors
    failure     the item and the state that travel with an error

Then what leaves the thread of a run, in `workers/`:

    calls       Call and Prefetch: work for one worker
    gather      GatherSync, GatherAsync: a part of the plan that runs on many workers
    members     these workers, who may die, be added or removed
    subplan     SubplanWorker: the worker's side of a gather
    accounts    where the seconds of one thread or process went
    futures     the answers of workers to requests
    local       workers in this process, and asking any worker
    remote      values that stay in another process
    pickling    pickling objects for other processes
    queues      Queue: between branches of a plan, or from a thread outside

And what watches a run, in `recording/`, of which the others know nothing:

    journal     what a run decided by the clock, noted and followed
    noted       the taps that note each item in a journal
    ledger      the accounts of a whole run
    trace       who worked when, and who waited for whom
    recorder    the newest items of each edge, to repeat a failure
"""
