// SPDX-License-Identifier: Apache-2.0
//
// Builds the views of a round: a REMIX for each partition that gets new tables.
#ifndef COMPACT_VIEWS_H
#define COMPACT_VIEWS_H

#include "compact/job.h"

// Builds a view over these runs and opens it. b: the build, without context, number and tags. young: it is a young
// view. If all runs of the old view stay, the new one takes over the scan debt. before: the view of the base that has
// the new one's first keys; or NULL. If the new one is paged, it takes filters over from that. *out has one reference.
// On failure no file is left.
MUST_CHECK enum remixdb_status views_build(struct compact *c, struct remix_build *b, struct sst *const *runs,
                                           uint32_t nr, bool young, const struct remix *before, struct remix **out);
// The task of a job's output (struct output): builds its view, unless another part of the round has failed. Sets the
// output's status.
void views_output(struct task *t, struct worker *w);
#endif
