/* Slots of an inference rank that a cache rank's GPU writes into: grant, write, notify, cancel, reuse.
 *
 * A sequence takes a seat of a lane (inference_rank/engine/engine_lanes.cc) with slot pages behind it. The inference
 * rank grants it by a frame (kSeat), which the cache rank answers (kSeated). Each step is announced (kStepPlan); the
 * cache rank's host launches kernels, which wait for the step's query, store rows straight into the slots and raise a
 * flag. Nobody checks rows that come this way: whoever has the slots when a row arrives attends to it. So the one rule
 * is that slots have another owner only when nobody will write into them for the old one.
 *
 * That is known when the step under way has given all of its flags, or when the lane has ended on the other side, too.
 * A cancel waits for the former; a lane whose step runs out of time leaves its seats and pages in quarantine for the
 * latter.
 *
 * What is modelled: 2 seats, each standing for its pages, too; 3 sequences, the first of 2 steps, of which the first two
 * may be cancelled at any moment; a step that may run out of time at any moment, once; a lane that is made anew
 * afterwards; kernels that take any time between two stores. Frames of a link keep their order (transport/transport.h);
 * when it ends, those under way may have arrived or not.
 *
 * What is not: bytes and layers (a slot holds the number of the sequence that wrote into it last), the death of a
 * process (its stores end with it), hosts that stop (see HOST_STOPS).
 *
 * Safety: attention of a sequence reads slots that nobody else has written into since it took them, and the cache rank
 * never writes into slots that are free or another's. Progress: every sequence ends, and every seat is free at the end.
 *
 * Each of these must be found wrong:
 *   -DPLANTED_REUSE_ON_TIMEOUT   a lane that has failed gives its seats back without waiting for the other side
 *   -DPLANTED_CANCEL_AT_ONCE     a cancel gives the seat back while a step is under way
 *   -DPLANTED_LOST_SEAT          a sequence that is cancelled while its grant is under way keeps its seat for ever
 *   -DHOST_STOPS                 the quarantine is a time, so that it does not cover an announcement that the host of
 *                                the cache rank has received and launches only after it: one that is stopped for longer
 *                                than the quarantine. A limit of today's lanes (docs/reliability.md), not planted.
 */

#define SEATS 2
#define SEQUENCES 3
#define NOBODY 0 /* sequences count from 1 */

mtype = { SEAT, PLAN };
/* Frames: kind, seat, sequence. A plan is of one row. */
chan to_cache = [4] of { mtype, byte, byte };
chan to_inference = [2] of { byte, byte }; /* kSeated: seat, sequence */

byte slot[SEATS];        /* whose rows lie there */
byte owner[SEATS];       /* who has the slots, by the inference rank's book */
bool quarantined[SEATS];

mtype = { WAITING, ASKED, SEATED, ENDED };
mtype state[SEQUENCES + 1] = WAITING;
byte seat_of[SEQUENCES + 1];
byte steps_left[SEQUENCES + 1] = 1;
bool cancelled[SEQUENCES + 1];

byte sits[SEATS];        /* by the cache rank's book */
byte writes_for[SEATS];  /* kernels under way: for this sequence */
bool flag[SEATS];        /* notified */
bool link_ended;         /* the inference rank has given the lane up */
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

inline free_seat(s) { owner[s] = NOBODY; slot[s] = NOBODY }

inline leave(q) {
  d_step {
    if
    :: state[q] == SEATED || state[q] == ASKED -> free_seat(seat_of[q])
    :: else
    fi;
    state[q] = ENDED
  }
}

/* Takes seat `s` for sequence `q`, loads what it starts with, and asks. */
inline take_seat(q, s) {
  d_step {
    owner[s] = q; slot[s] = q; seat_of[q] = s; state[q] = ASKED; flag[s] = false
  }
  to_cache ! SEAT, s, q;
}

/* One step of sequence `q`. Without `goto` out of it the step is over: its flag has come. */
inline decode(q) {
  s = seat_of[q];
  flag[s] = false;
  to_cache ! PLAN, s, q;
  if
  :: flag[s] -> skip
#ifdef PLANTED_CANCEL_AT_ONCE
  :: cancelled[q] -> leave(q); goto next
#endif
  :: may_time_out -> /* the lane has failed: frames that have not arrived yet may be lost */
     may_time_out = false; link_ended = true;
     goto failed
  fi;
  assert(slot[s] == q && owner[s] == q); /* what attention reads */
  steps_left[q]--;
  if
  :: steps_left[q] == 0 -> leave(q)
  :: else
  fi
}

#ifdef PLANTED_LOST_SEAT
#define leaves(x) (cancelled[x] && (state[x] == WAITING || state[x] == SEATED))
#else
#define leaves(x) (cancelled[x] && state[x] != ENDED)
#endif
#define decodes(x) (state[x] == SEATED && !cancelled[x])

active proctype InferenceRank() {
  byte s, q, other;
  steps_left[1] = 2;
next:
  do
  :: to_inference ? s, q ->
     if
     :: state[q] == ASKED && owner[s] == q -> state[q] = SEATED
     :: else /* of a seat that was given back */
     fi
  :: atomic { state[1] == WAITING && !cancelled[1] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_seat(1, s)
  :: atomic { state[2] == WAITING && !cancelled[2] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_seat(2, s)
  :: atomic { state[2] == WAITING && !cancelled[2] && !link_ended && owner[1] == NOBODY -> s = 1 }; take_seat(2, s)
  :: atomic { state[3] == WAITING && !cancelled[3] && !link_ended && owner[0] == NOBODY -> s = 0 }; take_seat(3, s)
  :: atomic { state[3] == WAITING && !cancelled[3] && !link_ended && owner[1] == NOBODY -> s = 1 }; take_seat(3, s)
  :: decodes(1) -> q = 1; decode(q)
  :: decodes(2) -> q = 2; decode(q)
  :: decodes(3) -> q = 3; decode(q)
  /* Between two steps, nothing of any sequence is under way. */
#ifdef PLANTED_LOST_SEAT
  :: cancelled[1] && state[1] == ASKED -> state[1] = ENDED
  :: cancelled[2] && state[2] == ASKED -> state[2] = ENDED
  :: cancelled[3] && state[3] == ASKED -> state[3] = ENDED
#endif
  :: leaves(1) -> leave(1)
  :: leaves(2) -> leave(2)
  :: leaves(3) -> leave(3)
  :: link_ended && other_side_has_ended && empty(to_inference) ->
     /* The quarantine is over, and a lane is made anew. */
     atomic {
       do
       :: to_cache ? _, _, _
       :: empty(to_cache) -> break
       od;
       s = 0;
       do
       :: s < SEATS ->
          if
          :: quarantined[s] -> quarantined[s] = false; free_seat(s)
          :: else
          fi;
          sits[s] = NOBODY; s++
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
       :: state[other] == ASKED || state[other] == SEATED ->
          s = seat_of[other];
#ifdef PLANTED_REUSE_ON_TIMEOUT
          free_seat(s);
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
  :: atomic { to_cache ? SEAT, s, q -> launching = true };
     sits[s] = q;
     if
     :: link_ended -> skip
     :: nfull(to_inference) -> to_inference ! s, q
     fi;
     launching = false
  :: atomic { to_cache ? PLAN, s, q -> launching = true };
     if
     :: sits[s] == q ->
        /* One plan after the other on a GPU's stream. */
        !under_way(s); writes_for[s] = q
     :: else /* refused: the peer hears of it, and gives the lane up by time here */
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
     atomic { if :: under_way(0) -> flag[0] = true; writes_for[0] = NOBODY :: else fi }
  :: atomic { under_way(1) -> s = 1 };
     atomic { under_way(1) -> assert(owner[1] == writes_for[1]); slot[1] = writes_for[1] };
     atomic { if :: under_way(1) -> flag[1] = true; writes_for[1] = NOBODY :: else fi }
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
