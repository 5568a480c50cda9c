"""What watches a run and changes nothing in it: the journal, the ledger of its seconds, traces, kept items."""
