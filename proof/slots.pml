/* Slots of an inference rank that a cache rank's GPU writes into: grant, write, notify, cancel, reuse.
 *
 * A sequence takes a batch row of a peer link (inference_rank/engine/engine_peer_steps.cc) with slot pages behind it. The inference
 * rank grants it by a frame (kBatchRow), which the cache rank answers (kBatchRowAnswer). Each step is announced (kStepPlan),
 * perhaps before the one before it has ended; the cache rank's host launches kernels, which wait for the step's query, store rows straight into the slots and raise a
 * flag. Nobody checks rows that come this way: whoever has the slots when a row arrives attends to it. So the one rule
 * is that slots have another owner only when nobody will write into them for the old one.
 *
 * That is known when all steps under way have given all of their flags, or when the peer link has ended on the other side, too.
 * A cancel waits for the former; a peer link whose step runs out of time leaves its batch rows and pages in quarantine for the
 * latter.
 *
 * What is modelled: 2 batch rows, each standing for its pages, too; 3 sequences, the first of 2 steps, of which the first two
 * may be cancelled at any moment; a step that may run out of time at any moment, once; a peer link that is made anew
 * afterwards; kernels that take any time between two stores. Frames of a link keep their order (transport/transport.h);
 * when it ends, those under way may have arrived or not.
 *
 * What is not: bytes and layers (a slot holds the number of the sequence that wrote into it last), the death of a
 * process (its stores end with it), hosts that stop (see HOST_STOPS).
 *
 * Safety: attention of a sequence reads slots that nobody else has written into since it took them, and the cache rank
 * never writes into slots that are free or another's. Progress: every sequence ends, and every batch row is free at the end.
 *
 * Each of these must be found wrong:
 *   -DPLANTED_REUSE_ON_TIMEOUT   a peer link that has failed gives its batch rows back without waiting for the other side
 *   -DPLANTED_CANCEL_AT_ONCE     a cancel gives the batch row back while a step is under way
 *   -DPLANTED_CANCEL_AHEAD       a cancel waits for the step that ends next, and not for the one announced behind it
 *   -DPLANTED_LOST_ROW           a sequence that is cancelled while its grant is under way keeps its batch row for ever
 *   -DHOST_STOPS                 the quarantine is a time, so that it does not cover an announcement that the host of
 *                                the cache rank has received and launches only after it: one that is stopped for longer
 *                                than the quarantine. A limit of today's peer links (docs/reliability.md), not planted.
 */

#define ROWS 2
#define SEQUENCES 3
#define NOBODY 0 /* sequences count from 1 */

mtype = { ROW, PLAN };
/* Frames: kind, batch row, sequence. A plan is of one row. */
chan to_cache = [4] of { mtype, byte, byte };
chan to_inference = [2] of { byte, byte }; /* kBatchRowAnswer: batch row, sequence */

byte slot[ROWS];        /* whose rows lie there */
byte owner[ROWS];       /* who has the slots, by the inference rank's book */
bool quarantined[ROWS];

mtype = { WAITING, ASKED, IN_BATCH, ENDED };
mtype state[SEQUENCES + 1] = WAITING;
byte row_of[SEQUENCES + 1];
byte steps_left[SEQUENCES + 1] = 1;
bool cancelled[SEQUENCES + 1];

byte has_row[ROWS];     /* by the cache rank's book */
byte writes_for[ROWS];  /* kernels under way: for this sequence */
byte flag[ROWS];        /* steps that have given all of theirs, of those announced last */
bool link_ended;         /* the inference rank has given the peer link up */
bool may_time_out = true;

#define under_way(s) (writes_for[s] != NOBODY)
#define no_kernel (!under_way(0) && !under_way(1))
#ifdef HOST_STOPS
#define other_side_has_ended no_kernel
#else
#define other_side_has_ended (no_kernel && !launching && empty(to_cache))
#endif
bool launching; /* the host has taken an announcement off the link, and its kernels are not under way yet */

#define all_ended (state[1] == ENDED && state[2] == ENDED && state[3] == ENDED)
#define all_free (owner[0] == NOBODY && owner[1] == NOBODY)

inline free_row(s) { owner[s] = NOBODY; slot[s] = NOBODY }

inline leave(q) {
  d_step {
    if
    :: state[q] == IN_BATCH || state[q] == ASKED -> free_row(row_of[q])
    :: else
    fi;
    state[q] = ENDED
  }
}

/* Takes batch row `s` for sequence `q`, loads what it starts with, and asks. */
inline take_row(q, s) {
  d_step {
    owner[s] = q; slot[s] = q; row_of[q] = s; state[q] = ASKED; flag[s] = 0
  }
  to_cache ! ROW, s, q;
}

/* A step of sequence `q`, or two, the second launched before the first has ended. Without `goto` out of it they are over:
 * their flags have come. */
inline decode(q) {
  s = row_of[q];
  flag[s] = 0;
  announced = 1;
  to_cache ! PLAN, s, q;
  if
  :: steps_left[q] > 1 -> announced = 2; to_cache ! PLAN, s, q
  :: true
  fi;
  if
  :: flag[s] == announced -> skip
#ifdef PLANTED_CANCEL_AT_ONCE
  :: cancelled[q] -> leave(q); goto next
#endif
#ifdef PLANTED_CANCEL_AHEAD
  :: flag[s] > 0 && cancelled[q] -> leave(q); goto next
#endif
  :: may_time_out -> /* the peer link has failed: frames that have not arrived yet may be lost */
     may_time_out = false; link_ended = true;
     goto failed
  fi;
  assert(slot[s] == q && owner[s] == q); /* what attention reads */
  steps_left[q] = steps_left[q] - announced;
  if
  :: steps_left[q] == 0 -> leave(q)
  :: else
  fi
}

#ifdef PLANTED_LOST_ROW
#define leaves(x) (cancelled[x] && (state[x] == WAITING || state[x] == IN_BATCH))
#else
#define leaves(x) (cancelled[x] && state[x] != ENDED)
#endif
#define decodes(x) (state[x] == IN_BATCH && !cancelled[x])

active proctype InferenceRank() {
  byte s, q, other, announced;
  steps_left[1] = 2;
next:
  do
  :: to_inference ? s, q ->
     if
     :: state[q] == ASKED && owner[s] == q -> state[q] = IN_BATCH
     :: else /* of a batch row that was given back */
     fi
  :: atomic { state[1] == WAITING && !cancelled[1] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_row(1, s)
  :: atomic { state[2] == WAITING && !cancelled[2] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_row(2, s)
  :: atomic { state[2] == WAITING && !cancelled[2] && !link_ended && owner[1] == NOBODY -> s = 1 }; take_row(2, s)
  :: atomic { state[3] == WAITING && !cancelled[3] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_row(3, s)
  :: atomic { state[3] == WAITING && !cancelled[3] && !link_ended && owner[1] == NOBODY -> s = 1 }; take_row(3, s)
  :: decodes(1) -> q = 1; decode(q)
  :: decodes(2) -> q = 2; decode(q)
  :: decodes(3) -> q = 3; decode(q)
  /* Between two steps, nothing of any sequence is under way. */
#ifdef PLANTED_LOST_ROW
  :: cancelled[1] && state[1] == ASKED -> state[1] = ENDED
  :: cancelled[2] && state[2] == ASKED -> state[2] = ENDED
  :: cancelled[3] && state[3] == ASKED -> state[3] = ENDED
#endif
  :: leaves(1) -> leave(1)
  :: leaves(2) -> leave(2)
  :: leaves(3) -> leave(3)
  :: link_ended && other_side_has_ended && empty(to_inference) ->
     /* The quarantine is over, and a peer link is made anew. */
     atomic {
       do
       :: to_cache ? _, _, _
       :: empty(to_cache) -> break
       od;
       s = 0;
       do
       :: s < ROWS ->
          if
          :: quarantined[s] -> quarantined[s] = false; free_row(s)
          :: else
          fi;
          has_row[s] = NOBODY; s++
       :: else -> break
       od;
       link_ended = false
     }
  :: all_ended && !link_ended -> break
  od;
  goto end;

failed:
  /* Its sequences begin anew: their slots rest, and they wait for others. */
  atomic {
    other = 1;
    do
    :: other <= SEQUENCES ->
       if
       :: state[other] == ASKED || state[other] == IN_BATCH ->
          s = row_of[other];
#ifdef PLANTED_REUSE_ON_TIMEOUT
          free_row(s);
#else
          quarantined[s] = true;
#endif
          state[other] = WAITING
       :: else
       fi;
       other++
    :: else -> break
    od
#ifdef PLANTED_REUSE_ON_TIMEOUT
    ; link_ended = false
#endif
  }
  goto next;
end: skip
}

/* Takes frames in their order. It may be late with each of them, but not for ever. */
active proctype CacheHost() {
  byte s, q;
end:
  do
  :: atomic { to_cache ? ROW, s, q -> launching = true };
     has_row[s] = q;
     if
     :: link_ended -> skip
     :: nfull(to_inference) -> to_inference ! s, q
     fi;
     launching = false
  :: atomic { to_cache ? PLAN, s, q -> launching = true };
     if
     :: has_row[s] == q ->
        /* One plan after the other on a GPU's stream. */
        !under_way(s); writes_for[s] = q
     :: else /* refused: the peer hears of it, and gives the peer link up by time here */
     fi;
     launching = false
  od
}

/* The GPU of the cache rank. */
active proctype Kernels() {
  byte s;
end:
  do
  :: atomic { under_way(0) -> s = 0 };
     atomic { under_way(0) -> assert(owner[0] == writes_for[0]); slot[0] = writes_for[0] };
     atomic { if :: under_way(0) -> flag[0]++; writes_for[0] = NOBODY :: else fi }
  :: atomic { under_way(1) -> s = 1 };
     atomic { under_way(1) -> assert(owner[1] == writes_for[1]); slot[1] = writes_for[1] };
     atomic { if :: under_way(1) -> flag[1]++; writes_for[1] = NOBODY :: else fi }
  od
}

active proctype Clients() {
  if
  :: cancelled[1] = true
  :: skip
  fi;
  if
  :: cancelled[2] = true
  :: skip
  fi
}

ltl progress { <> (all_ended && all_free) }
