/*
 * The ticket rule and the end of an epoch: a root that orders logs 0 and 1, and its child, which
 * relays the root's stream and orders log 2. docs/protocol.md has the clauses.
 *
 * The logs have at most MESSAGES messages together. Their tickets land in any order, before or after
 * them. There are FAULTS: a ticket is lost or lands twice, a relay or a freeze is lost, a freeze comes too
 * early. Instances order what has no ticket, and cancel what nobody pays. Two instances of the child
 * relay pieces of any size, late, and twice. If the epoch ends, a marker comes to each log at any
 * time, and then two instances of each collector freeze, late, and twice. Tickets behind the root's
 * freeze never end.
 *
 * An instance that knows less than there is needs no state: either it has written that before, and
 * it lands late, or it does not count.
 *
 * The root does nothing that depends on the child. So -DONLY_ROOT has no child, -DONLY_CHILD has
 * whatever stream a root may have, and both reach further.
 *
 * Properties:
 *  1  a debt is never negative
 *  2  the child orders exactly what the root has ordered, in its order: after a relay up to `next`
 *     its positions are those of the root at `next`
 *  3  at rest (no step is possible) of an epoch that does not end, each log is ordered exactly to its
 *     end, no debt is left, and the child has relayed all
 *  4  a log ends where the frozen stream of its top has it: nothing moves it behind the first freeze
 *  5  no log ends below its marker
 *  6  the child freezes behind its parent's freeze, and has its inherited logs end where the parent has them
 *  7  at rest of an epoch that ends both are frozen, and no log lacks what is ordered
 *  8  rest comes: no step leads back to a state before it, and the root has fewer than RECORDS records
 *
 * Broken on purpose, each by one -D:
 *  NO_NUMBER   a correction counts whatever its number is, so a late second one makes the debt negative (1)
 *  GAPS        a relay counts whatever its `first` is (2)
 *  NO_FILL     nobody fills a hole (3)
 *  NO_FROZEN   a ticket counts behind a freeze (4)
 *  NO_REACHED  a freeze counts whatever it names (5)
 *  NO_WAIT     the child freezes without its parent's freeze (6)
 *  NO_STANDBY  a collector freezes once, and no other instance does it if that is lost (7)
 *  TO_END      the child relays up to its parent's end, which late tickets move (8)
 */
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define RECORDS 16
#define ROOT 0
#define CHILD 1
#define TOP(l) (l == 2)

bool ends;                 /* the epoch ends: markers come */
byte left[3];              /* messages that are not started yet */
byte coming[3];            /* messages in flight */
byte tickets[3];           /* tickets in flight */
byte end[3], pos[3];       /* of the logs, and of the streams of their tops */
byte marker[3];            /* behind the marker of a log; 0 without one */
byte ended[3];             /* where the log's top was frozen */
short debt[3];
byte number[3];            /* corrections that counted */
byte wanted[3];            /* collectors' tickets in flight: `upto`, 0 without one */
byte fixes[3], fix_number[3], fix_amount[3];   /* corrections in flight: how many copies, and what */
byte faults = FAULTS;
byte at0[RECORDS], at1[RECORDS], count;   /* the root's positions behind its record number i */
byte relayed, child[2];    /* the child's parent_next, and its positions of what it inherits */
byte from[2], to[2];       /* relays in flight; `to` is 0 without one */
byte freezes[2];           /* freezes in flight */
byte frozen[2];            /* behind which record; 0 if it is not */
#ifdef NO_STANDBY
bool froze[2];
#endif

inline record() {
#ifdef ONLY_ROOT
    count = 1                           /* nobody relays it */
#else
    assert(count + 1 < RECORDS);                                                    /* 8 */
    count++;
    at0[count] = pos[0];
    at1[count] = pos[1]
#endif
}

#ifdef NO_FROZEN
#define OPEN(l) true
#else
#define OPEN(l) (!frozen[TOP(l)])                                                   /* clause 1 */
#endif

inline move(l, offset) {
    pos[l] = offset;
    assert(!frozen[TOP(l)] || pos[l] == ended[l]);                                  /* 4 */
    if
    :: TOP(l) == ROOT -> record()
    :: else
    fi
}

/* Clause 2 for one message. */
inline pay(l) {
    if
    :: OPEN(l) && debt[l] > 0 -> debt[l]--
    :: OPEN(l) && debt[l] == 0 -> move(l, pos[l] + 1)
    :: else
    fi
}

#define LOG(l) \
    :: d_step { left[l] > 0 -> left[l]--; coming[l]++; tickets[l]++ } \
    :: d_step { coming[l] > 0 -> coming[l]--; end[l]++ } \
    :: d_step { ends && marker[l] == 0 -> end[l]++; marker[l] = end[l] } \
    :: d_step { tickets[l] > 0 -> tickets[l]--; pay(l) } \
    :: d_step { tickets[l] > 0 && faults -> faults--; tickets[l]-- } \
    :: d_step { tickets[l] > 0 && faults -> faults--; pay(l) } \
    :: d_step { !frozen[TOP(l)] && wanted[l] == 0 && pos[l] < end[l] -> wanted[l] = end[l] } \
    :: d_step { wanted[l] > 0 -> \
        if \
        :: OPEN(l) && wanted[l] > pos[l] -> debt[l] = debt[l] + wanted[l] - pos[l]; move(l, wanted[l]) \
        :: else \
        fi; \
        wanted[l] = 0 } \
    :: d_step { !frozen[TOP(l)] && QUIET(l) && debt[l] > 0 && fixes[l] == 0 -> \
        fixes[l] = 2; fix_number[l] = number[l] + 1; fix_amount[l] = debt[l] } \
    :: d_step { fixes[l] > 0 -> fixes[l]--; \
        if \
        :: OPEN(l) && FIX_COUNTS(l) -> number[l]++; debt[l] = debt[l] - fix_amount[l] \
        :: else \
        fi; \
        assert(debt[l] >= 0);                                                       /* 1 */ \
        if \
        :: fixes[l] == 0 -> fix_number[l] = 0; fix_amount[l] = 0 \
        :: else \
        fi } \
    :: d_step { FILLED && QUIET(l) && pos[l] > end[l] -> end[l]++ }

#define QUIET(l) (left[l] == 0 && coming[l] == 0 && tickets[l] == 0 && wanted[l] == 0)
#ifdef NO_NUMBER
#define FIX_COUNTS(l) (fix_number[l] > 0)
#else
#define FIX_COUNTS(l) (fix_number[l] == number[l] + 1)                              /* clause 3 */
#endif
#ifdef NO_FILL
#define FILLED false
#else
#define FILLED true
#endif

/* What there is to relay ends with the root's freeze. */
#ifdef TO_END
#define RELEVANT count
#else
#define RELEVANT (frozen[ROOT] -> frozen[ROOT] : count)
#endif

/* An instance relays from what its stream has up to any record. */
#define INSTANCE(w) \
    :: atomic { !frozen[CHILD] && to[w] == 0 && relayed < RELEVANT -> \
        from[w] = relayed; to[w] = relayed + 1; \
        do \
        :: to[w] < RELEVANT -> to[w]++ \
        :: break \
        od } \
    :: d_step { to[w] > 0 -> relay(w); from[w] = 0; to[w] = 0 } \
    :: d_step { to[w] > 0 && faults -> faults--; from[w] = 0; to[w] = 0 } \
    :: atomic { faults && to[w] > 0 && to[w] < RELEVANT -> /* its next relay lands, this is lost */ \
        faults--; d_step { from[w] = to[w]; to[w] = to[w] + 1 } }

/* Clause 4, `first` = from and `next` = to. Entries are what the root ordered behind record `from`, so positions
   only where the root has moved: across a gap, those of the other log would be missing. */
inline relay(w) {
    if
#ifdef GAPS
    :: !frozen[CHILD] && to[w] > relayed ->
#else
    :: !frozen[CHILD] && from[w] == relayed && to[w] > relayed ->
#endif
        if
        :: at0[to[w]] > at0[from[w]] -> child[0] = at0[to[w]]
        :: else
        fi;
        if
        :: at1[to[w]] > at1[from[w]] -> child[1] = at1[to[w]]
        :: else
        fi;
        relayed = to[w];
        assert(child[0] == at0[relayed] && child[1] == at1[relayed])                /* 2 */
    :: else
    fi
}

/* What the freeze of collector n names: its own logs' markers and, of the child, its parent's freeze. */
#ifdef ONLY_ROOT
#define MARKED (marker[0] && marker[1])
#elif defined(ONLY_CHILD)
#define MARKED (marker[2])
#else
#define MARKED (marker[0] && marker[1] && marker[2])
#endif
#define ORDERED(n) (n == ROOT && pos[0] >= marker[0] && pos[1] >= marker[1] || n == CHILD && pos[2] >= marker[2])
#if defined(NO_WAIT)
#define KNOWS_END(n) true
#define RELAYED(n) true
#elif defined(TO_END)
#define KNOWS_END(n) (n == ROOT || frozen[ROOT])
#define RELAYED(n) (n == ROOT || relayed == count)
#else
#define KNOWS_END(n) (n == ROOT || frozen[ROOT])
#define RELAYED(n) (n == ROOT || relayed >= frozen[ROOT])
#endif
#define REACHED(n) (KNOWS_END(n) && RELAYED(n) && ORDERED(n))
#ifdef NO_REACHED
#define FREEZE_COUNTS(n) (!frozen[n])
#else
#define FREEZE_COUNTS(n) (!frozen[n] && REACHED(n))                                 /* clause 5 */
#endif
#ifdef NO_STANDBY
#define MAY_FREEZE(n) (MARKED && !frozen[n] && !froze[n])
#define NOTE_FREEZE(n) froze[n] = true
#else
#define MAY_FREEZE(n) (MARKED && !frozen[n] && freezes[n] < 2)
#define NOTE_FREEZE(n) skip
#endif

/* A fault: a freeze comes before what its instance had written before it. */
#define FREEZE(n) \
    :: d_step { MAY_FREEZE(n) && REACHED(n) -> freezes[n]++; NOTE_FREEZE(n) } \
    :: d_step { MAY_FREEZE(n) && KNOWS_END(n) && !REACHED(n) && faults -> faults--; freezes[n]++ } \
    :: d_step { freezes[n] > 0 -> freezes[n]--; \
        if \
        :: FREEZE_COUNTS(n) -> freeze(n) \
        :: else \
        fi } \
    :: d_step { freezes[n] > 0 && faults -> faults--; freezes[n]-- }

inline freeze(n) {
    if
    :: n == ROOT ->
        record();
        frozen[n] = count;
        ended[0] = pos[0]; ended[1] = pos[1];
        assert(ended[0] >= marker[0] && ended[1] >= marker[1])                      /* 5 */
    :: else ->
        frozen[n] = 1;
        ended[2] = pos[2];
        assert(ended[2] >= marker[2]);                                              /* 5 */
        assert(frozen[ROOT] && child[0] == ended[0] && child[1] == ended[1])        /* 6 */
    fi
}

/* With -DONLY_CHILD: whatever stream a root may have, message by message. */
#define ANY(l) \
    :: d_step { !frozen[ROOT] && left[l] > 0 -> left[l]--; end[l]++; move(l, end[l]) }

#ifdef ONLY_CHILD
#define ROOTS ANY(0) ANY(1) :: d_step { ends && !frozen[ROOT] -> freeze(ROOT) }
#else
#define ROOTS LOG(0) LOG(1) FREEZE(ROOT)
#endif
#ifdef ONLY_ROOT
#define CHILDS
#else
#define CHILDS LOG(2) INSTANCE(0) INSTANCE(1) FREEZE(CHILD) \
    :: d_step { frozen[ROOT] && relayed == count -> pay(0); record() }          /* another late ticket */
#endif

active proctype world() {
    atomic {
        do                                              /* logs 0 and 1 are alike */
        :: left[0] + left[1] + left[2] < MESSAGES -> left[0]++
        :: left[0] + left[1] + left[2] < MESSAGES && left[1] < left[0] -> left[1]++
#ifndef ONLY_ROOT
        :: left[0] + left[1] + left[2] < MESSAGES -> left[2]++
#endif
        :: break
        od
    }
    if
    :: ends = true
    :: true
    fi;
    do
    ROOTS CHILDS
    :: else ->
        if
        :: ends ->
            assert(frozen[ROOT]);                                                   /* 7 */
#ifndef ONLY_ROOT
            assert(frozen[CHILD]);
#endif
            assert(end[0] >= ended[0] && end[1] >= ended[1] && end[2] >= ended[2])
        :: else ->
            assert(pos[0] == end[0] && pos[1] == end[1] && pos[2] == end[2]);       /* 3 */
            assert(debt[0] == 0 && debt[1] == 0 && debt[2] == 0);
#ifndef ONLY_ROOT
            assert(relayed == count && child[0] == pos[0] && child[1] == pos[1])
#else
            skip
#endif
        fi;
        break
    od
}
