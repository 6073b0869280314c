//! Settings that are one word out of a list, each with the spelling it has in the file.

/// An enum whose variants are spelled as words in the file, with both directions of the mapping.
macro_rules! choice {
    (
        $(#[$about:meta])*
        $name:ident { $( $(#[$variant_about:meta])* $variant:ident = $word:literal, )+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$variant_about])* $variant, )+
        }

        impl $name {
            /// Every word the file may hold, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word for this value.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }

            /// The value a word stands for. Letter case counts.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $word => Some(Self::$variant), )+
                    _ => None,
                }
            }
        }
    };
}

choice! {
    /// What this server does with the pool.
    Role {
        /// Saves pages, loads none.
        Producer = "producer",
        /// Loads pages, saves none.
        Consumer = "consumer",
        /// Saves and loads.
        Both = "both",
        /// Lends its memory to the pool and moves no page.
        Capacity = "capacity",
    }
}

impl Role {
    /// Whether pages are saved.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Producer | Self::Both)
    }

    /// Whether pages are looked up and loaded.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Consumer | Self::Both)
    }

    /// Whether pages move at all.
    pub const fn transfers(self) -> bool {
        self.writes() || self.reads()
    }
}

choice! {
    /// Which pool is behind the library.
    StoreKind {
        /// A pool in this process.
        Embedded = "embedded",
        /// Mooncake's official library, loaded at run time.
        Mooncake = "mooncake",
        /// Our own client of Mooncake's wire protocol.
        MooncakeTcp = "mooncake-tcp",
        /// A table of the engine's own functions.
        Host = "host",
    }
}

impl StoreKind {
    /// Whether the pool is reached through a Mooncake master.
    pub const fn needs_master(self) -> bool {
        matches!(self, Self::Mooncake | Self::MooncakeTcp)
    }
}

choice! {
    /// What becomes of the engine's shortening of local matches under speculative decoding.
    LocalReuseBackoff {
        /// The engine does not shorten: whole blocks match.
        Off = "off",
        /// The engine shortens and rounds down to a block; the pool serves the trimmed block.
        Align = "align",
    }
}
