/* Who may write to a sequence: attach epochs, two routers, two inference ranks and a cache rank.
 *
 * A cache rank keeps a sequence's rows and who holds it: each attachment raises its epoch
 * (cache_rank/store/sequence_store.h), rows and releases that carry another epoch are refused, and their sender is told
 * that it was fenced (cache_rank/step/epoch_fence.h). An attachment drops the rows that its router knows no token of, and
 * replays from there (inference_rank/engine/engine_opening.cc). Attachments are calls and overtake rows, which are
 * frames: rows of an earlier holder may come at any later time.
 *
 * A router may take a rank for lost that is not, and make another attempt elsewhere; what the earlier one still tells is
 * not heard (router/dispatch/dispatched_request.cc). A client that has lost its router, or believes so, resumes at the
 * other one, which asks the ranks for the answer; the latest router that asks has it
 * (inference_rank/service/resumable_requests.h). The first router may live on for a while, and attach once more.
 *
 * What is modelled: one request of 2 steps after its prompt. Step s stores row s and draws token s; ranks do not wait
 * for a row to be stored before they tell the token and go on. The rows of ranks may differ (their numerics), so a row
 * stands for the attachment that wrote it. The first router suspects a rank falsely once, at any moment; the client
 * leaves it once, at any moment; it ends, or has made its last attempt, some time after. Tokens reach routers at once.
 *
 * What is not: the death of ranks (a rank that is never heard again is a late one here), several shards, an attachment
 * whose answer is lost. Where no rank has the answer any more, because the one that failed has told the first router so,
 * the second begins anew, which ends the request here.
 *
 * Safety: (1) the rows behind a holder's restart are the holder's own, each exactly once; (2) a client gets tokens
 * 1, 2, ... without gap or repeat; (3) nobody but the holder frees the sequence: it is not computed again while its cache
 * rank lives. Progress: the client has everything in the end.
 *
 * Each of these must be found wrong:
 *   -DPLANTED_EPOCH_NOT_CHECKED   rows of earlier holders are taken
 *   -DPLANTED_RELEASE_UNCHECKED   the end of an earlier holder frees the sequence
 *   -DPLANTED_FENCED_IN_SILENCE   a rank that was fenced does not tell its router
 *
 * With -DSAME_NUMERICS rows of all ranks are alike, and -DPLANTED_EPOCH_NOT_CHECKED is not found: a row is taken only
 * where the rows end, and each attachment goes back to what its router knows, so that what an earlier holder adds is
 * what the present one would have. Between ranks whose rows are the same bits, the epoch saves attempts; it is needed
 * where they are not.
 */

#define STEPS 2
#define A 0
#define B 1
#define NONE 9

mtype = { OPEN, ATTACH, RESUME };       /* router to rank */
mtype = { FINISHED, FAILED, NOT_HERE }; /* rank to router */
mtype = { FENCED, REFUSED };            /* cache rank to inference rank */

chan to_rank[2] = [1] of { mtype, byte, byte, byte };   /* router, attempt, tokens that it knows */
chan to_router[2] = [2] of { mtype, byte };             /* attempt */
byte latest_attempt[2], known_by[2];                    /* of the routers */
chan rows_of[2] = [1] of { byte, byte };                /* epoch, row */
chan to_holder[2] = [2] of { mtype, byte };             /* the sequence's epoch; 0: it is not there */

/* The cache rank's book. */
byte epoch, holder = NONE;
byte next_row;      /* where the rows end */
byte restart;       /* of the present attachment */
byte written_by[STEPS + 1];
bool is_freed;

bool computed_again, client_left, has_ended[2]; /* routers, by A and B */
byte client_at = A, client_has;
bool client_done;
bool may_suspect = true;

inline attach_at_cache(r, known) {
  d_step {
    if
    :: holder != NONE && holder != r && len(to_holder[holder]) < 2 -> to_holder[holder] ! FENCED, epoch + 1
    :: else /* it hears of it with its next row */
    fi;
    epoch++;
    holder = r;
    if
    :: known + 1 < next_row -> next_row = known + 1
    :: else
    fi;
    restart = next_row;
  }
}

inline tell(kind_) {
  if
  :: listener == NONE || has_ended[listener] -> skip
  :: else -> to_router[listener] ! kind_, attempt
  fi
}

/* Of an attempt that was given up nothing is heard. */
#define hears(x, number) (number == latest_attempt[x])

/* Tokens reach the router at once: one that is late would only make the next attachment go back further. */
inline tell_token(token) {
  d_step {
    if
    :: listener != NONE && !has_ended[listener] && hears(listener, attempt) ->
       assert(token <= known_by[listener] + 1);
       if
       :: token > known_by[listener] ->
          known_by[listener] = token;
          if
          :: client_at == listener && token > client_has -> assert(token == client_has + 1); client_has = token
          :: else
          fi
       :: else
       fi
    :: else
    fi
  }
}

/* States that differ only in what is not read again are one. */
inline forget() { kind = 0; router = 0; number = 0; known = 0 }

proctype InferenceRank(byte r) {
  mtype kind;
  bool is_here;         /* an answer, under way or ended */
  bool runs, failed;
  byte my_epoch, next, told, listener = NONE, attempt, router, number, known;
  byte got_epoch, got_restart;
  bool attaching;


end:
  do
  :: atomic { !attaching && len(to_rank[r]) > 0 ->
     to_rank[r] ? kind, router, number, known;
     if
     :: kind == OPEN ->
        d_step {
          epoch = 1; holder = r; next_row = 1; restart = 1;
          is_here = true; runs = true; my_epoch = 1; next = 1; told = 0; listener = router; attempt = number
        }
     :: kind == ATTACH && is_here && !failed && listener != NONE && listener != router ->
        /* The answer was resumed by another call. */
        if
        :: has_ended[router]
        :: else -> to_router[router] ! FAILED, number
        fi
     :: kind == ATTACH && !(is_here && !failed && listener != NONE && listener != router) ->
        if
        :: is_freed ->
           computed_again = true
        :: else ->
           attach_at_cache(r, known);
           d_step {
             got_epoch = epoch; got_restart = restart; attaching = true;
             is_here = true; failed = false; runs = false; listener = router; attempt = number; told = known
           }
        fi
     :: kind == RESUME && !is_here -> to_router[router] ! NOT_HERE, number
     :: kind == RESUME && is_here ->
        tell(FAILED);
        listener = router; attempt = number;
        known = 1;
        do
        :: known <= told -> tell_token(known); known++
        :: else -> break
        od;
        if
        :: failed -> tell(FAILED); is_here = false; listener = NONE
        :: !failed && !runs && !attaching -> tell(FINISHED)
        :: else
        fi
     fi;
     forget() }
  :: attaching -> /* the answer of the call has come */
     d_step { attaching = false; runs = true; my_epoch = got_epoch; next = got_restart; got_epoch = 0; got_restart = 0 }
  :: atomic { runs && next <= STEPS && len(rows_of[r]) < 1 ->
     rows_of[r] ! my_epoch, next;
     if
     :: next > told -> told = next; tell_token(next)
     :: else
     fi;
     next++ }
  :: atomic { runs && next > STEPS ->
     /* A call, too: it may overtake rows. */
     d_step {
       runs = false;
       if
#ifdef PLANTED_RELEASE_UNCHECKED
       :: true ->
#else
       :: my_epoch == epoch ->
#endif
          assert(is_freed || my_epoch == epoch);
          is_freed = true; holder = NONE
       :: else
       fi
     };
     tell(FINISHED) }
  :: atomic { to_holder[r] ? kind, number ->
     if
     :: runs && ((kind == FENCED && (number == 0 || number > my_epoch)) || (kind == REFUSED && number == my_epoch)) ->
        runs = false; failed = true;
#ifdef PLANTED_FENCED_IN_SILENCE
        if
        :: kind == FENCED
        :: else -> tell(FAILED); is_here = false
        fi
#else
        /* Whoever listens knows; else it is told to whoever resumes it. */
        if
        :: listener != NONE && !has_ended[listener] ->
           to_router[listener] ! FAILED, attempt; is_here = false
        :: else
        fi
#endif
     :: else
     fi;
     forget() }
  od
}

inline take_row() {
  d_step {
    if
#ifdef PLANTED_EPOCH_NOT_CHECKED
    :: is_freed ->
#else
    :: is_freed || e != epoch || r != holder ->
#endif
       if
       :: r != holder && len(to_holder[r]) < 2 -> to_holder[r] ! FENCED, (is_freed -> 0 : epoch)
       :: else /* a straggler from before the peer's own attachment */
       fi
    :: else ->
       if
       :: row != next_row ->
          if
          :: len(to_holder[r]) < 2 -> to_holder[r] ! REFUSED, e
          :: else
          fi
       :: else ->
          written_by[row] = e;
#ifndef SAME_NUMERICS
          i = restart;
          do
          :: i < row -> assert(e != epoch || written_by[i] == epoch); i++
          :: else -> break
          od;
#endif
          next_row++;
          i = 0
       fi
    fi;
    e = 0; row = 0; r = 0
  }
}

proctype CacheRank() {
  byte r, e, row, i;

end:
  do
  :: atomic { rows_of[0] ? e, row -> r = 0; take_row() }
  :: atomic { rows_of[1] ? e, row -> r = 1; take_row() }
  od
}

inline try_again() {
  rank = 1 - rank;
  latest_attempt[x]++;
  to_rank[rank] ! ATTACH, x, latest_attempt[x], known_by[x]
}

#define gives_up (x == A && client_left && latest_attempt[A] >= 2) /* it has noticed that nobody listens */

proctype Router(byte x) {
  mtype kind;
  byte number, rank;

  if
  :: x == A -> latest_attempt[A] = 1; to_rank[0] ! OPEN, A, 1, 0
  :: x == B -> /* the client leaves the first router */
     d_step { !client_done -> client_left = true; client_at = B; latest_attempt[B] = 1 };
     to_rank[0] ! RESUME, B, 1, 0
  fi;
end:
  do
  :: x == A && client_left -> break /* it has ended, or noticed */
  :: atomic { to_router[x] ? kind, number ->
     if
     :: !hears(x, number)
     :: else ->
        if
        :: kind == FINISHED ->
           if
           :: client_at == x -> assert(client_has == STEPS); client_done = true
           :: else
           fi;
           break
        :: kind == FAILED && gives_up -> break
        :: kind == FAILED && !gives_up -> try_again()
        :: kind == NOT_HERE && rank == 0 ->
           rank = 1; latest_attempt[x]++; to_rank[1] ! RESUME, B, latest_attempt[x], 0
        :: kind == NOT_HERE && rank == 1 -> computed_again = true; break
        fi
     fi;
     kind = 0; number = 0 }
  :: atomic { x == A && may_suspect && !gives_up -> may_suspect = false; try_again() }
  od;
  atomic {
    has_ended[x] = true;
    do
    :: to_router[x] ? _, _
    :: empty(to_router[x]) -> break
    od
  }
}

init {
  atomic {
    run InferenceRank(0); run InferenceRank(1); run CacheRank(); run Router(A); run Router(B)
  }
}

ltl progress { <> (client_done || computed_again) }
