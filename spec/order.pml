/*
 * Acceptance, cascade and freeze: what docs/protocol.md says, for a machine to check (spin).
 *
 * Modelled. A root collector and its child, INSTANCES live instances of each. Three logs:
 *
 *     log 0   root's      in the bag of the root alone   (with -DTWO_SHARED: in both bags)
 *     log 1   root's      in both bags: relayed by the child
 *     log 2   child's     enters the order at the child
 *
 * MESSAGES messages or fewer, in any logs; CRASHES crashes, LOSSES mishaps of an append (lost;
 * landed, but its writer is told that it failed; landed twice); a freeze of both at the end.
 * A step is one of: an instance makes a record, speculating on what it has pending; an append lands
 * (those of one instance in their order, those of different instances in any, as late as may be);
 * an instance reads its stream; a fault. After a crash the first few of the appends in flight may
 * still land, at any later time; the new incarnation knows the log alone.
 *
 * Terms are those of docs/protocol.md. How they look here:
 *
 *     previous    A digest names a record. The record number k that counted is the only one that
 *                 ever has that place, so an instance that extends it says prev = k. One that
 *                 extends its own record in flight says so by link = LINKED: when that record
 *                 counts, it is number prev; when it comes to nothing, no record that counts
 *                 has that digest: link = DEAD. prev alone is a sequence number.
 *     positions   pos[log], for what counts (state[node]) and for what an instance speculates
 *     parent_next relayed: how many of the root's records that counted
 *     runs        own: one run of any length; parent: those of the root's records
 *                 from ... to-1, in their order, filtered to the bag (there may be none)
 *
 * An instance may know less than there is. Nothing is stored for that: it may take any shorter run,
 * any fewer of the parent's records, or wait. So all messages can be there from the beginning, and
 * to read a stream in part is to have read it earlier. The freeze comes when the logs are ordered up
 * to their markers; one message may stand after a marker.
 *
 * Left out: bytes and hashing, early runs, fills, checkpoints, further epochs, the control topic,
 * several logs in one own record, consumers.
 *
 * Checked, in every state that can be reached (assertions; each has its number in a message):
 *   1  records of a stream follow each other without a gap or a repetition, log by log
 *   2  at most one record extends a state: what counts extends the last that counted
 *   3  a stream holds only logs of its collector's bag
 *   4  the child's stream, restricted to the shared logs, is a prefix of the root's, in its order
 *   5  nothing counts after a freeze
 *   6  the child freezes after the root, with everything before the root's freeze relayed
 *   7  an append is void only if something else counted in between or a fault befell its writer
 *   8  at rest (no step but a fault is left): both are frozen, all up to the markers is ordered, once
 * That every run comes to rest is not searched: each step uses up a fault, a place or an append, or reads.
 *
 * Broken on purpose, each by one -D; the check must find fault with it:
 *   BY_SEQUENCE  acceptance by sequence number (prev) instead of the digest (prev and link)
 *   NO_PREVIOUS  any record counts that is possible (not in spec/check: with one message no fault)
 *   NO_RULE      any record counts
 *   NO_FILTER    the child relays the logs outside its bag, too
 *   NO_POSITION  with BY_SEQUENCE: and run.first need not be the position
 *   NO_WAIT      the child freezes without waiting for the root's freeze
 *   NO_FROZEN    instances and readers forget that the epoch is over
 */

#ifndef MESSAGES
#define MESSAGES 4
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef PIPELINE
#define PIPELINE 2                      /* records an instance may have pending */
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT (PIPELINE + 2)        /* with those from before a restart */
#endif
#ifdef ONLY_ROOT
#define KEEP_STREAM 0                   /* nobody relays it */
#else
#define KEEP_STREAM 1
#endif
#define RECORDS (MESSAGES + 2)          /* of the root that count; one to spare for broken rules */

#define LOGS 3
#define ROOT 0
#define CHILD 1
#define NODE(w) (w / 2)                 /* instances 0, 1 are the root's, 2, 3 the child's */
#define GHOST 4                         /* appends that outlive the crash of their writer */
#define IS_OWN(node, log) ((node == ROOT) == (log < 2))
#ifdef TWO_SHARED
#define SHARED(log) (log < 2)
#else
#define SHARED(log) (log == 1)
#endif
#ifdef NO_FILTER
#define RELAYED(log) (log < 2)
#else
#define RELAYED(log) SHARED(log)
#endif

/* Record.what: the log of an own record, or */
#define PARENT 3
#define FREEZE 4
/* Record.link */
#define COUNTED 0
#define LINKED 1
#define DEAD 2

typedef Order { byte pos[LOGS]; byte count; byte relayed; byte frozen }
typedef Record { byte what; byte from; byte to; byte prev; byte link }
typedef Queue { byte n; Record at[IN_FLIGHT] }
typedef Instance {
    Order spec;                         /* what counts as far as read, then all that is pending */
    byte pending;
    byte old;                           /* how many of those in flight are from before a restart */
    byte behind;                        /* a restart is due: beaten, or told of a failure */
    Queue flight
}

Order state[2];                         /* what counts, per node */
Record stream[RECORDS];                 /* the root's records that count; `what` is log or FREEZE */
byte end[LOGS], marker[LOGS];
Instance inst[4];
Queue ghost;
byte ghost_node;
byte crashes = CRASHES, losses = LOSSES;
byte followed;                          /* shared messages in the child's stream */

/* Scratch of one indivisible step. */
byte i, k, at, nth, ok, current;
Order ahead;

/* ---- words ------------------------------------------------------------------------------- */

inline who(w) {
    if
    :: w == GHOST -> printf("STEP an instance that crashed")
    :: w != GHOST && NODE(w) == ROOT -> printf("STEP root %d", w % 2)
    :: else -> printf("STEP child %d", w % 2)
    fi
}

inline tell(r) {
    if
    :: r.what < LOGS -> printf(" own, log %d %d..%d", r.what, r.from, r.to - 1)
    :: r.what == PARENT -> printf(" parent, the root's records %d..%d", r.from + 1, r.to)
    :: r.what == FREEZE -> printf(" freeze")
    fi;
    printf(" (as record %d)", r.prev + 1)
}

/* ---- records ----------------------------------------------------------------------------- */

inline copy_order(to_, from_) {
    for (i : 0 .. LOGS - 1) { to_.pos[i] = from_.pos[i] }
    to_.count = from_.count; to_.relayed = from_.relayed; to_.frozen = from_.frozen
}

inline clear_order(o) {
    for (i : 0 .. LOGS - 1) { o.pos[i] = 0 }
    i = 0; o.count = 0; o.relayed = 0; o.frozen = 0
}

inline copy_record(to_, from_) {
    to_.what = from_.what; to_.from = from_.from; to_.to = from_.to;
    to_.prev = from_.prev; to_.link = from_.link
}

inline drop_first(queue) {
    for (i : 1 .. IN_FLIGHT - 1) { copy_record(queue.at[i - 1], queue.at[i]) }
    queue.n--;
    clear(queue.at[IN_FLIGHT - 1])
}

inline clear(r) { r.what = 0; r.from = 0; r.to = 0; r.prev = 0; r.link = 0 }

/* ahead := the state that the record leads to; ok: it is possible. checked: assert the properties. */
inline apply(node, r, checked) {
    ok = 1;
    if
    :: r.what < LOGS ->
        ok = IS_OWN(node, r.what);
        take(node, r.what, r.from, r.to, checked)
    :: r.what == PARENT ->
        ok = node == CHILD && r.to > ahead.relayed;
        at = r.from;
        do
        :: at < r.to ->
            if
            :: stream[at].what < LOGS && RELAYED(stream[at].what) ->
                take(node, stream[at].what, stream[at].from, stream[at].to, checked)
            :: else
            fi;
            at++
        :: else -> break
        od;
        at = 0;
        ahead.relayed = r.to
    :: r.what == FREEZE ->
        ok = r.to >= ahead.relayed;
        ahead.relayed = r.to;
        ahead.frozen = 1
    fi;
    ahead.count++
}

inline take(node, log_, first, next, checked) {
#ifndef NO_POSITION
    ok = ok && (first == ahead.pos[log_]);
#endif
    if
    :: checked ->
        assert(first == ahead.pos[log_]);                                           /* 1 */
        assert(node == ROOT || log_ == 2 || SHARED(log_));                          /* 3 */
        if
        :: node == CHILD && SHARED(log_) ->
            for (k : first .. next - 1) { follow(log_, k) }
        :: else
        fi
    :: else
    fi;
    ahead.pos[log_] = next
}

/* The shared message that the child orders now is the one that the root ordered at this place. */
inline follow(log_, offset) {
    nth = 0;
    ok = 0;
    for (i : 0 .. RECORDS - 1) {
        if
        :: i < state[ROOT].count && stream[i].what < LOGS && SHARED(stream[i].what) ->
            if
            :: followed >= nth && followed < nth + stream[i].to - stream[i].from ->
                ok = stream[i].what == log_ && offset == stream[i].from + followed - nth
            :: else
            fi;
            nth = nth + stream[i].to - stream[i].from
        :: else
        fi
    }
    assert(ok);                                                                     /* 4 */
    followed++
}

/* ---- the acceptance rule ------------------------------------------------------------------- */

inline judge(node, r) {
    copy_order(ahead, state[node]);
    apply(node, r, 0);
#if defined(BY_SEQUENCE)
    ok = ok && (r.prev == state[node].count);
#elif defined(NO_RULE)
    ok = 1;
#elif !defined(NO_PREVIOUS)
    ok = ok && (r.prev == state[node].count && r.link == COUNTED);
#endif
#ifndef NO_FROZEN
    ok = ok && !state[node].frozen
#endif
}

inline accept(node, r) {
    assert(!state[node].frozen);                                                    /* 5 */
#if !defined(BY_SEQUENCE) && !defined(NO_PREVIOUS) && !defined(NO_RULE)
    assert(r.prev == state[node].count && r.link == COUNTED);                       /* 2 */
#endif
    copy_order(ahead, state[node]);
    apply(node, r, 1);
    if
    :: node == CHILD && r.what == FREEZE ->
        nth = 0;
        for (i : 0 .. RECORDS - 1) {
            if
            :: i < state[ROOT].count && stream[i].what < LOGS && SHARED(stream[i].what) ->
                nth = nth + stream[i].to - stream[i].from
            :: else
            fi
        }
        assert(state[ROOT].frozen && r.to == state[ROOT].count && followed == nth)  /* 6 */
    :: else
    fi;
    if
    :: node == ROOT && KEEP_STREAM ->
        stream[state[ROOT].count].what = r.what;
        if
        :: r.what < LOGS ->
            stream[state[ROOT].count].from = r.from; stream[state[ROOT].count].to = r.to
        :: else
        fi
    :: else
    fi;
    copy_order(state[node], ahead)
}

/* The first append of writer w lands; once more is left in flight if it lands twice. */
inline land(w, node, queue, twice) {
    who(w); printf(" appends"); tell(queue.at[0]);
    current = w != GHOST && inst[w % 4].old == 0;
    judge(node, queue.at[0]);
    if
    :: ok ->
        accept(node, queue.at[0]);
        printf(": counts\n");
        if
        :: queue.n > 1 && queue.at[1].link == LINKED -> queue.at[1].link = COUNTED
        :: else
        fi;
        for (i : 0 .. 3) {
            if
            :: NODE(i) == node && !(i == w && current) -> inst[i].behind = 1
            :: else
            fi
        }
    :: else ->
        printf(": void\n");
        assert(!current || inst[w % 4].behind);                                     /* 7 */
        orphan(queue)
    fi;
    if
    :: twice ->
        inst[w % 4].old = (inst[w % 4].old -> inst[w % 4].old : 1);
        queue.at[0].link = (queue.at[0].link == COUNTED -> COUNTED : DEAD)
    :: else -> leave(w, queue)
    fi
}

/* The first of a queue comes to nothing: what extends it can not count. */
inline orphan(queue) {
    if
    :: queue.n > 1 && queue.at[1].link == LINKED -> queue.at[1].link = DEAD
    :: else
    fi
}

inline leave(w, queue) {
    drop_first(queue);
    if
    :: w != GHOST && inst[w % 4].old > 0 -> inst[w % 4].old--
    :: else
    fi
}

/* ---- an instance --------------------------------------------------------------------------- */

#define MAY_MAKE(w) (inst[w].pending < PIPELINE && inst[w].flight.n < IN_FLIGHT && MAY_GO_ON(w))
#ifdef NO_FROZEN
#define MAY_GO_ON(w) 1
#else
#define MAY_GO_ON(w) (!inst[w].spec.frozen)
#endif
#define MAY_OWN(w, l) (MAY_MAKE(w) && IS_OWN(NODE(w), l) && inst[w].spec.pos[l] < end[l])
#define MAY_RELAY(w) (MAY_MAKE(w) && inst[w].spec.relayed < state[ROOT].count)
#define AT_MARKER(w, l) (!IS_OWN(NODE(w), l) || inst[w].spec.pos[l] >= marker[l])
#define AT_MARKERS(w) (AT_MARKER(w, 0) && AT_MARKER(w, 1) && AT_MARKER(w, 2))
/* No run of the root's record k - 1 is left to relay. */
#define SAID(w, k) (k > state[ROOT].count || k <= inst[w].spec.relayed || !RELAYED(stream[k - 1].what))
#define ALL_SAID(w) (SAID(w, 1) && SAID(w, 2) && SAID(w, 3) && SAID(w, 4) && SAID(w, 5) && SAID(w, 6))
#ifdef NO_WAIT
#define PARENT_OVER(w) ALL_SAID(w)
#else
#define PARENT_OVER(w) (state[ROOT].frozen && ALL_SAID(w))
#endif
#define MAY_FREEZE(w) (MAY_MAKE(w) && !inst[w].spec.frozen && AT_MARKERS(w) && (NODE(w) == ROOT || PARENT_OVER(w)))
#define RELAY_ALL(w) (NODE(w) == ROOT -> 0 : state[ROOT].count)


/* An instance appends what extends all that it speculates, and carries it into that. */
inline make(w, what_, from_, to_) {
    k = inst[w].flight.n;
    inst[w].flight.at[k].what = what_;
    inst[w].flight.at[k].from = from_;
    inst[w].flight.at[k].to = to_;
    inst[w].flight.at[k].prev = inst[w].spec.count;
    /* It extends its own record in flight, or one that came to nothing, or one that counted. */
    inst[w].flight.at[k].link =
        (inst[w].flight.n > inst[w].old -> LINKED : (inst[w].pending && inst[w].behind -> DEAD : COUNTED));
    who(w); printf(" makes"); tell(inst[w].flight.at[k]); printf("\n");
    copy_order(ahead, inst[w].spec);
    apply(NODE(w), inst[w].flight.at[k], 0);
    copy_order(inst[w].spec, ahead);
    inst[w].flight.n++;
    inst[w].pending++
}

/* What counts of its own stream, and is not read: its own records if it is not behind. */
#define UNREAD(w) (state[NODE(w)].count + inst[w].pending - inst[w].spec.count)
#define MAY_READ(w) (inst[w].behind || UNREAD(w) > 0)

inline read(w) {
    if
    :: inst[w].behind -> restart(w)
    :: else -> inst[w].pending = inst[w].pending - UNREAD(w)
    fi
}

/* Forget what was speculated: what counts stands in the stream alone. */
inline restart(w) {
    copy_order(inst[w].spec, state[NODE(w)]);
    inst[w].pending = 0;
    inst[w].behind = 0;
    inst[w].old = inst[w].flight.n
}

/* The first `kept` of the appends in flight will still land; a new instance begins from the log. */
inline crash(w, kept) {
    who(w); printf(" crashes; %d of its appends will land yet\n", kept);
    ghost_node = NODE(w);
    do
    :: inst[w].flight.n > 0 ->
        if
        :: ghost.n < kept ->
            copy_record(ghost.at[ghost.n], inst[w].flight.at[0]);
            ghost.n++
        :: else
        fi;
        drop_first(inst[w].flight)
    :: else -> break
    od;
    restart(w)
}

/* ---- equal states ---------------------------------------------------------------------------- */

/* Instances of a node are alike, so which of them is which makes no difference: sort them.
   What is over is the same, whatever led there: forget it. */
inline tidy() {
    from = 0; to = 0; i = 0; k = 0; at = 0; nth = 0; ok = 0; current = 0;
    clear_order(ahead);
    if
    :: ghost.n == 0 -> ghost_node = 0
    :: else
    fi;
    c_code {
        int node;
        for (node = 0; node < 2; node++) {
            struct Instance *a = &now.inst[2 * node], *b = a + 1, kept;
            if (memcmp(a, b, sizeof kept) > 0) {
                memcpy(&kept, a, sizeof kept);
                memcpy(a, b, sizeof kept);
                memcpy(b, &kept, sizeof kept);
            }
        }
    }
}

/* ---- what may come first ---------------------------------------------------------------------- */

/*
 * With -DEAGER some steps are taken before all others, as soon as they are possible: to read one's
 * stream, and to let an append land that no state to come can accept. No other step makes them
 * impossible, nor sees that they were taken. An instance that is late with its reading can only
 * write what is void: all else it could do is what another would do that has read. So nothing is
 * missed, with the digest as the rule; broken rules are checked without -DEAGER.
 */
#ifdef EAGER
#define DOOMED(queue, node) (queue.n > 0 && (queue.at[0].link == DEAD || queue.at[0].prev < state[node].count))
#define URGENT(w) (MAY_READ(w) || DOOMED(inst[w].flight, NODE(w)))
#define URGENT_BELOW(w) ((w > 0 && URGENT(0)) || (w > 1 && URGENT(1)) || (w > 2 && URGENT(2)) || (w > 3 && URGENT(3)))
#define CALM (!URGENT_BELOW(4) && !DOOMED(ghost, ghost_node))
#define MAY_LAND(w) (inst[w].flight.n > 0 && (CALM || (!URGENT_BELOW(w) && !MAY_READ(w) && DOOMED(inst[w].flight, NODE(w)))))
#define MAY_READ_NOW(w) (MAY_READ(w) && !URGENT_BELOW(w))
#define GHOST_MAY_LAND (ghost.n > 0 && !URGENT_BELOW(4))
#else
#define CALM 1
#define MAY_LAND(w) (inst[w].flight.n > 0)
#define MAY_READ_NOW(w) MAY_READ(w)
#define GHOST_MAY_LAND (ghost.n > 0)
#endif

/* ---- the world ------------------------------------------------------------------------------- */

byte from, to;                          /* what a step chooses; 0 between steps */

inline choose(low, high) {
    to = low;
    do
    :: to < high -> to++
    :: break
    od
}

#define OWN(w, l) \
    :: atomic { CALM && MAY_OWN(w, l) -> \
        choose(inst[w].spec.pos[l] + 1, end[l]); \
        d_step { make(w, l, inst[w].spec.pos[l], to); tidy() } }

#define RELAY(w) \
    :: atomic { CALM && MAY_RELAY(w) -> \
        choose(inst[w].spec.relayed + 1, state[ROOT].count); \
        d_step { make(w, PARENT, inst[w].spec.relayed, to); tidy() } }

#define INSTANCE(w) \
    :: d_step { CALM && MAY_FREEZE(w) -> make(w, FREEZE, RELAY_ALL(w), RELAY_ALL(w)); tidy() } \
    :: d_step { MAY_LAND(w) -> land(w, NODE(w), inst[w].flight, 0); tidy() } \
    :: d_step { MAY_READ_NOW(w) -> who(w); printf(" reads its stream\n"); read(w); tidy() } \
    :: d_step { CALM && losses && inst[w].flight.n > 0 -> \
        losses--; who(w); printf(" loses"); tell(inst[w].flight.at[0]); printf("\n"); \
        inst[w].behind = inst[w].behind || inst[w].old == 0; \
        orphan(inst[w].flight); leave(w, inst[w].flight); tidy() } \
    :: d_step { CALM && losses && inst[w].flight.n > 0 -> \
        losses--; who(w); printf(" is told of a failure, wrongly\n"); restart(w); tidy() } \
    :: d_step { CALM && losses && inst[w].flight.n > 0 -> \
        losses--; printf("STEP twice:\n"); land(w, NODE(w), inst[w].flight, 1); tidy() } \
    :: atomic { CALM && crashes -> crashes--; choose(0, inst[w].flight.n); d_step { crash(w, to); tidy() } }

/* With -DONLY_CHILD: whatever stream a root may have, record by record. */
#define ANY_ROOT(l) \
    :: atomic { CALM && !state[ROOT].frozen && state[ROOT].pos[l] < end[l] -> \
        choose(state[ROOT].pos[l] + 1, end[l]); \
        d_step { any(l, state[ROOT].pos[l], to); tidy() } }
#define ANY_FREEZE \
    :: d_step { CALM && !state[ROOT].frozen && state[ROOT].pos[0] >= marker[0] && state[ROOT].pos[1] >= marker[1] -> \
        any(FREEZE, 0, 0); tidy() }

inline any(what_, from_, to_) {
    inst[0].flight.at[0].what = what_;
    inst[0].flight.at[0].from = from_;
    inst[0].flight.at[0].to = to_;
    inst[0].flight.at[0].prev = state[ROOT].count;
    printf("STEP the root's"); tell(inst[0].flight.at[0]); printf(" counts\n");
    accept(ROOT, inst[0].flight.at[0]);
    copy_order(inst[0].spec, state[ROOT]);
    copy_order(inst[1].spec, state[ROOT]);
    clear(inst[0].flight.at[0])
}

#define ORDERED(n, l) (state[n].pos[l] >= marker[l] && state[n].pos[l] <= end[l])

active proctype world() {
    /* Which messages there are, and where the markers stand. */
    atomic {
        do
        :: end[0] + end[1] + end[2] < MESSAGES -> end[0]++
        :: end[0] + end[1] + end[2] < MESSAGES -> end[1]++
#ifndef ONLY_ROOT
        :: end[0] + end[1] + end[2] < MESSAGES -> end[2]++
#endif
        :: break
        od;
        marker[0] = end[0]; marker[1] = end[1]; marker[2] = end[2];
        if
        :: marker[0] > 0 -> marker[0]--
        :: marker[1] > 0 -> marker[1]--
        :: marker[2] > 0 -> marker[2]--
        :: true
        fi;
        printf("STEP there are %d, %d, %d messages, the markers at %d, %d, %d\n",
            end[0], end[1], end[2], marker[0], marker[1], marker[2])
    }
    do
#ifdef ONLY_CHILD
    ANY_ROOT(0) ANY_ROOT(1) ANY_FREEZE
#else
    OWN(0, 0) OWN(0, 1) OWN(1, 0) OWN(1, 1) INSTANCE(0) INSTANCE(1)
#endif
#ifndef ONLY_ROOT
    OWN(2, 2) OWN(3, 2) RELAY(2) RELAY(3) INSTANCE(2) INSTANCE(3)
#endif
    :: d_step { GHOST_MAY_LAND -> land(GHOST, ghost_node, ghost, 0); tidy() }
    :: d_step { CALM && crashes -> crashes = 0 }        /* faults are over */
    :: d_step { CALM && losses -> losses = 0 }
    :: else ->
        assert(state[ROOT].frozen && ORDERED(ROOT, 0) && ORDERED(ROOT, 1));         /* 8 */
#ifndef ONLY_ROOT
        assert(state[CHILD].frozen && ORDERED(CHILD, 2));
        assert(state[CHILD].pos[1] == state[ROOT].pos[1]);
        assert(!SHARED(0) || state[CHILD].pos[0] == state[ROOT].pos[0]);
#endif
        break
    od
}
