"""Experiments around the product: emulated networks, campaigns that compare predictions with runs, and the demo.

- `netlab`: a network of any shape on one Linux machine, by namespaces; each rank is a process on one of its hosts.
- `campaign`: a list of configurations; a configuration's prediction is written to disk before its runs start.
- `demo`: buckets planned for machines that are not here, then predictions compared with real runs on this one.
- `findings`: the lines of `doctor` on what of this can run here.

Each starts other commands of ddpsim and ddpexec as a user would type them. Nothing but `commands` imports this room.

Read first: `campaign.campaign`, then `campaign.stages`; for networks `netlab.lab`.

Public modules: campaign.campaign, campaign.record, campaign.report, campaign.results, campaign.spec, demo.output,
demo.planned, demo.real, findings, netlab.command.
"""
