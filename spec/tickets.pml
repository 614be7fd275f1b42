/*
 * The ticket rule of the order records: a root that orders logs 0 and 1, and two instances
 * of its child, which relay the root's stream. docs/protocol.md has the clauses.
 *
 * Each log has at most MESSAGES messages. Their tickets land in any order, before or after them, and
 * FAULTS of them are lost, or land twice. Two instances of the root's collector order what has no
 * ticket, and cancel what nobody pays. Two instances of the child relay from what they have read, in
 * pieces of any size, late, and twice.
 *
 * Properties:
 *  1  a debt is never negative, and a position never goes back
 *  2  the child orders exactly what the root has ordered, in its order: after a relay up to `next`
 *     its positions are those of the root at `next`
 *  3  at the end (no step is possible) each log is ordered exactly to its end, no debt is left, and
 *     the child has relayed all: nothing is late for ever, and nothing waits for what never comes
 * Termination: each step uses up a message, a ticket, a fault, a hole, a debt or a relay.
 *
 * Broken on purpose: GAPS (a relay counts across a gap), NO_NUMBER (a correction counts whatever its
 * number is, so a late second one makes the debt negative).
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define RECORDS 14

byte left[2];              /* messages that are not started yet */
byte coming[2];            /* messages in flight */
byte tickets[2];           /* tickets in flight */
byte end[2], pos[2];       /* of the logs, and of the root's stream */
short debt[2];
byte number[2];            /* corrections that counted */
byte wanted[2];            /* collectors' tickets in flight: `upto`, 0 without one */
byte fixes[2], fix_number[2], fix_amount[2];   /* corrections in flight: how many copies, and what */
byte faults = FAULTS;
byte at0[RECORDS], at1[RECORDS], count;   /* the root's positions behind its record number i */
byte relayed, child[2];    /* the child's parent_next, and its positions */
byte known[2];             /* up to where each instance has read the child's stream */
byte from[2], upto[2];     /* relays in flight */

inline record() {
    assert(count + 1 < RECORDS);
    count++;
    at0[count] = pos[0];
    at1[count] = pos[1]
}

/* Clause 2 for one message. */
inline pay(l) {
    if
    :: debt[l] > 0 -> debt[l]--
    :: else -> pos[l]++; record()
    fi
}

#define LOG(l) \
    :: d_step { left[l] > 0 -> left[l]--; coming[l]++; tickets[l]++ } \
    :: d_step { coming[l] > 0 -> coming[l]--; end[l]++ } \
    :: d_step { tickets[l] > 0 -> tickets[l]--; pay(l) } \
    :: d_step { tickets[l] > 0 && faults -> faults--; tickets[l]-- } \
    :: d_step { tickets[l] > 0 && faults -> faults--; pay(l) } \
    :: d_step { wanted[l] == 0 && pos[l] < end[l] -> wanted[l] = end[l] } \
    :: d_step { wanted[l] > 0 -> \
        if \
        :: wanted[l] > pos[l] -> debt[l] = debt[l] + wanted[l] - pos[l]; pos[l] = wanted[l]; record() \
        :: else \
        fi; \
        wanted[l] = 0 } \
    :: d_step { QUIET(l) && debt[l] > 0 && fixes[l] == 0 -> \
        fixes[l] = 2; fix_number[l] = number[l] + 1; fix_amount[l] = debt[l] } \
    :: d_step { fixes[l] > 0 -> fixes[l]--; \
        if \
        :: FIX_COUNTS(l) -> number[l]++; debt[l] = debt[l] - fix_amount[l] \
        :: else \
        fi; \
        assert(debt[l] >= 0);                                                       /* 1 */ \
        if \
        :: fixes[l] == 0 -> fix_number[l] = 0; fix_amount[l] = 0 \
        :: else \
        fi } \
    :: d_step { QUIET(l) && pos[l] > end[l] -> end[l]++ }       /* a hole is filled */

#define QUIET(l) (left[l] == 0 && coming[l] == 0 && tickets[l] == 0 && wanted[l] == 0)
#ifdef NO_NUMBER
#define FIX_COUNTS(l) (fix_number[l] > 0)
#else
#define FIX_COUNTS(l) (fix_number[l] == number[l] + 1)
#endif

/* An instance reads its stream, and relays from there up to any record; it may be late with both. */
#define INSTANCE(w) \
    :: d_step { known[w] < relayed -> known[w] = relayed } \
    :: atomic { upto[w] == 0 && known[w] < count -> \
        from[w] = known[w]; upto[w] = known[w] + 1; \
        do \
        :: upto[w] < count -> upto[w]++ \
        :: break \
        od } \
    :: d_step { upto[w] > 0 -> relay(w); from[w] = 0; upto[w] = 0 } \
    :: d_step { upto[w] > 0 && faults -> faults--; from[w] = 0; upto[w] = 0 } \
    :: atomic { faults && upto[w] > 0 && upto[w] < count -> /* its next relay lands, this is lost */ \
        faults--; d_step { from[w] = upto[w]; upto[w] = upto[w] + 1 } }

/* Clause 4. Its entries are what the root ordered behind record `from`, so positions only where the
   root has moved: across a gap, those of the other log would be missing. */
inline relay(w) {
    if
#ifdef GAPS
    :: upto[w] > relayed ->
#else
    :: from[w] <= relayed && upto[w] > relayed ->
#endif
        if
        :: at0[upto[w]] > at0[from[w]] -> child[0] = at0[upto[w]]
        :: else
        fi;
        if
        :: at1[upto[w]] > at1[from[w]] -> child[1] = at1[upto[w]]
        :: else
        fi;
        relayed = upto[w];
        assert(child[0] == at0[relayed] && child[1] == at1[relayed])                /* 2 */
    :: else
    fi
}

active proctype world() {
    left[0] = MESSAGES;
    left[1] = MESSAGES;
    do
    LOG(0) LOG(1) INSTANCE(0) INSTANCE(1)
    :: else ->
        assert(pos[0] == end[0] && pos[1] == end[1] && debt[0] == 0 && debt[1] == 0);   /* 3 */
        assert(relayed == count && child[0] == pos[0] && child[1] == pos[1]);
        break
    od
}
