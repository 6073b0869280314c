//! Bugs on purpose: switches that make the library wrong in one place each, so that it can be seen
//! whether the tests find it. They exist only in builds with `--cfg kvb_plant`; in every other build
//! [`is`] is the constant false, and nothing of it remains.

macro_rules! bugs {
    ($($bug:ident $name:literal $what:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        #[cfg(kvb_plant)]
        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[$(Bug::$bug,)*];

            /// What it is called on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }

            /// What goes wrong.
            pub fn what(self) -> &'static str {
                match self { $(Bug::$bug => $what,)* }
            }
        }
    };
}

bugs! {
    WatermarkAtBuild "watermark-at-build"
        "the watermark moves when the pass is built, not when it was submitted",
    StaleMetadata "stale-metadata"
        "a worker moves pages of lives that ended when an older metadata names them",
    ConfirmAnyLife "confirm-any-life"
        "a pass that was submitted confirms blocks of a later life of the id",
    PinDropped "pin-dropped"
        "the first save of a request that ends lets go of it, whatever else is queued",
    ScatterUnjudged "scatter-unjudged"
        "pages are scattered whatever the verdict on them is",
    SealIgnored "seal-ignored"
        "the seal of a page is not looked at",
    DraftsCounted "drafts-counted"
        "rejected draft tokens move the watermark",
    PagesCount "pages-count"
        "whatever has a page counts as computed: prompts and draft slots allocated ahead",
    ShardLeftOut "shard-left-out"
        "a hit does not need the page of the last rank",
    LastToken "last-token"
        "a prompt that is stored as a whole is offered as a whole",
    PutForgotten "put-forgotten"
        "a block whose put failed is never emitted again",
    ReportedEarly "reported-early"
        "a request is reported as saved while a save is queued",
    DroppedLoadsCount "dropped-loads-count"
        "loads that never started because their pass was replaced count as landed",
    MinusOne "minus-one"
        "a block without a page in some group is saved all the same",
    ResetKeepsSaves "reset-keeps-saves"
        "reset leaves the saves of a bound pass in it",
    ReleasedRead "released-read"
        "saves that are queued when their request is reset read its pages all the same",
    ReleasedForgotten "released-forgotten"
        "what was reset is forgotten when any save ends, and a later one reads its pages",
    EndKeepsSaves "end-keeps-saves"
        "the announcement of an end leaves the saves of a bound pass in it",
    OfferEndMoves "offer-end-moves"
        "when the local match grew, the end of the offer moves along",
    LoadedWrittenBack "loaded-written-back"
        "blocks that came from the pool are saved",
    FailedOfferedAgain "failed-offered-again"
        "a block whose load failed is offered again",
    ShortAnswerHits "short-answer-hits"
        "a lookup answer of the wrong length counts",
    UnknownHits "unknown-hits"
        "a key that the pool says nothing about counts as present",
    LostStillSaved "lost-still-saved"
        "a request that lost a page keeps its saves",
    ReplacementAppended "replacement-appended"
        "a page list that replaces the known one is added to it",
    GateLeftOpen "gate-left-open"
        "the load of a request that was reset goes on writing",
    DiscardedReported "discarded-reported"
        "a load whose request is gone is reported all the same",
    LoadsTwice "loads-twice"
        "a metadata that is bound again queues its asynchronous loads again",
    FenceSkipped "fence-skipped"
        "asynchronous loads do not wait for their fence",
    LoadedEarly "loaded-early"
        "an asynchronous load is reported when its last pages are in their slots",
    FailedLands "failed-lands"
        "an asynchronous load that lost a page is reported as landed",
    FailedUntold "failed-untold"
        "the scheduler does not hear of asynchronous loads that failed",
    ParkedNotPinned "parked-not-pinned"
        "the pages of a request whose load is on its way count as free",
    EndedUntold "ended-untold"
        "other ranks do not hear of lives that ended",
    AnnouncementKept "announcement-kept"
        "the announcement of a load outlives its request",
    AnnouncementLost "announcement-lost"
        "the announcement of a load that is not queued yet is lost",
    NothingParked "nothing-parked"
        "an asynchronous offer that is honoured with nothing does not travel",
    MorePagesLost "more-pages-lost"
        "pages that are reported while a request waits for its load are not entered",
    LateCounts "late-counts"
        "pages of a load whose call is late count as there",
    LoanNotHeld "loan-not-held"
        "a request is reported while a late call may still use its pages in the cache itself",
    KeptHandedBack "kept-handed-back"
        "requests of a late load into the cache itself are handed back",
    LentUnpinned "lent-unpinned"
        "pages that the pool itself was to write count as free",
    SlotsKept "slots-kept"
        "a load that ends early keeps its slots",
    UnwantedFails "unwanted-fails"
        "a load that nobody waits for can fail",
    ParkedRuns "parked-runs"
        "a step of a request is taken before its load was reported",
    StaleAccepted "stale-accepted"
        "a reservation that was replaced can still be accepted",
    ReleaseIgnored "release-ignored"
        "what is released of a reservation is loaded all the same",
    WrongHolder "wrong-holder"
        "a reservation can be accepted for another request",
    TailForgotten "tail-forgotten"
        "tokens that a request took while it decoded are forgotten when somebody looks at it",
    LinesMixedUp "lines-mixed-up"
        "a request that moves to the place of one that ended takes that one's last tokens for its own",
    SleepForgotten "sleep-forgotten"
        "loads go on while the layout is unregistered, and touch its memory",
}

/// Whether this bug is planted.
#[cfg(not(kvb_plant))]
#[inline(always)]
pub(crate) const fn is(_: Bug) -> bool {
    false
}

#[cfg(kvb_plant)]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Whether this bug is planted.
#[cfg(kvb_plant)]
#[inline]
pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Plants a bug in place of the one before, or none.
#[cfg(kvb_plant)]
pub fn plant(bug: Option<Bug>) {
    let number = bug.map_or(u8::MAX, |bug| bug as u8);
    PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
}
