//! Versions of Mooncake whose messages differ.

/// A family of versions with the same messages, named after the first of them, oldest first.
///
/// A new version of Mooncake that changes a struct becomes a new line here; `docs/design/wire.md` says how its
/// differences are found and where they are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 0.3.12.
    V0_3_12,
    /// 0.3.13 and 0.3.14.
    V0_3_13,
}

impl Family {
    /// All of them, the newest first: the order in which a master is asked.
    pub const ALL: [Self; 2] = [Self::V0_3_13, Self::V0_3_12];

    /// The versions, for people.
    pub const fn versions(self) -> &'static str {
        match self {
            Self::V0_3_12 => "0.3.12",
            Self::V0_3_13 => "0.3.13 to 0.3.14",
        }
    }
}
