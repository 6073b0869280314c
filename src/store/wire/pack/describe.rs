//! Descriptions of structs: the fields in their order, each with the versions that have it.
//!
//! ```text
//! record! {
//!     pub struct Segment<'a> {
//!         id: Uuid,
//!         name: Text<'a>,
//!         host_id: Text<'a> = since V0_3_12,
//!     }
//! }
//! ```
//!
//! A field that a version lacks is neither part of its literal nor written; read, it has its default.
//! `since V` is "in V and later ones", `until V` "in those before V".

/// Whether a version has a field.
macro_rules! present {
    ($family:expr) => {
        true
    };
    ($family:expr, since $version:ident) => {
        $family >= $crate::store::wire::family::Family::$version
    };
    ($family:expr, until $version:ident) => {
        $family < $crate::store::wire::family::Family::$version
    };
}

/// A struct of the protocol.
macro_rules! record {
    (
        $(#[$about:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $( $(#[$field_about:meta])* $field:ident : $type:ty $(= $rule:ident $version:ident)? ),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name $(<$life>)? {
            $( $(#[$field_about])* pub $field: $type, )+
        }

        impl $(<$life>)? $crate::store::wire::pack::Literal for $name $(<$life>)? {
            fn literal(family: $crate::store::wire::family::Family, out: &mut Vec<u8>) {
                out.push($crate::store::wire::pack::mark::STRUCT);
                $( if $crate::store::wire::pack::present!(family $(, $rule $version)?) {
                    <$type as $crate::store::wire::pack::Literal>::literal(family, out);
                } )+
                out.push($crate::store::wire::pack::mark::END);
            }
        }

        impl $(<$life>)? $crate::store::wire::pack::Pack for $name $(<$life>)? {
            fn longest(&self, family: $crate::store::wire::family::Family) -> usize {
                let mut longest = 0;
                $( if $crate::store::wire::pack::present!(family $(, $rule $version)?) {
                    longest = longest.max(self.$field.longest(family));
                } )+
                longest
            }

            fn write(&self, to: &mut $crate::store::wire::pack::Writer<'_>) {
                $( if $crate::store::wire::pack::present!(to.family() $(, $rule $version)?) {
                    self.$field.write(to);
                } )+
            }
        }

        $crate::store::wire::pack::readable! { $name $(<$life>)? {
            $( $field : $type $(= $rule $version)? ),+
        } }
    };
}

/// The reading half of a record, which borrows from the message if the record has a lifetime.
macro_rules! readable {
    ($name:ident { $($fields:tt)* }) => {
        $crate::store::wire::pack::readable! { @ ['m] $name { $($fields)* } }
    };
    ($name:ident <$life:lifetime> { $($fields:tt)* }) => {
        $crate::store::wire::pack::readable! { @ [$life] $name<$life> { $($fields)* } }
    };
    (@ [$life:lifetime] $name:ty { $( $field:ident : $type:ty $(= $rule:ident $version:ident)? ),+ }) => {
        impl<$life> $crate::store::wire::pack::Unpack<$life> for $name {
            fn read(
                from: &mut $crate::store::wire::pack::Reader<$life>,
            ) -> Result<Self, $crate::store::wire::pack::Flaw> {
                Ok(Self {
                    $( $field: match $crate::store::wire::pack::present!(from.family() $(, $rule $version)?) {
                        true => <$type as $crate::store::wire::pack::Unpack<$life>>::read(from)?,
                        false => Default::default(),
                    }, )+
                })
            }
        }
    };
}

/// One of several structs; its number is the place among those that the version has.
macro_rules! variant {
    (
        $(#[$about:meta])*
        pub enum $name:ident <$life:lifetime> {
            $( $(#[$choice_about:meta])* $choice:ident ($type:ty) $(= $rule:ident $version:ident)? ),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name<$life> {
            $( $(#[$choice_about])* $choice($type), )+
        }

        impl<$life> $crate::store::wire::pack::Literal for $name<$life> {
            fn literal(family: $crate::store::wire::family::Family, out: &mut Vec<u8>) {
                out.push($crate::store::wire::pack::mark::VARIANT);
                $( if $crate::store::wire::pack::present!(family $(, $rule $version)?) {
                    <$type as $crate::store::wire::pack::Literal>::literal(family, out);
                } )+
                out.push($crate::store::wire::pack::mark::END);
            }
        }

        impl<$life> $crate::store::wire::pack::Pack for $name<$life> {
            fn longest(&self, family: $crate::store::wire::family::Family) -> usize {
                match self {
                    $( Self::$choice(value) => value.longest(family), )+
                }
            }

            /// Nothing for a choice that the version lacks.
            fn write(&self, to: &mut $crate::store::wire::pack::Writer<'_>) {
                let mut numbers = 0_u8..;
                $( if $crate::store::wire::pack::present!(to.family() $(, $rule $version)?) {
                    let number = numbers.next().unwrap_or_default();
                    if let Self::$choice(value) = self {
                        to.bytes(&[number]);
                        return value.write(to);
                    }
                } )+
            }
        }

        impl<$life> $crate::store::wire::pack::Unpack<$life> for $name<$life> {
            fn read(
                from: &mut $crate::store::wire::pack::Reader<$life>,
            ) -> Result<Self, $crate::store::wire::pack::Flaw> {
                let found = Some(from.byte()?);
                let mut numbers = 0_u8..;
                $( if $crate::store::wire::pack::present!(from.family() $(, $rule $version)?)
                    && numbers.next() == found
                {
                    return <$type as $crate::store::wire::pack::Unpack<$life>>::read(from).map(Self::$choice);
                } )+
                Err($crate::store::wire::pack::Flaw::Choice)
            }
        }
    };
}

/// A call of the master, or of another class: its arguments in their order, and what it answers.
macro_rules! request {
    (
        $(#[$about:meta])*
        pub struct $name:ident $(<$life:lifetime>)? = $method:literal $(of $class:literal)? -> $reply:ty {
            $( $(#[$field_about:meta])* $field:ident : $type:ty $(= $rule:ident $version:ident)? ),* $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub struct $name $(<$life>)? {
            $( $(#[$field_about])* pub $field: $type, )*
        }

        impl $(<$life>)? $crate::store::wire::pack::Request for $name $(<$life>)? {
            $( const CLASS: &'static str = $class; )?
            const METHOD: &'static str = $method;
            type Reply<'m> = $reply;

            #[allow(unused_variables, unused_mut, reason = "a call may have no arguments")]
            fn arguments(family: $crate::store::wire::family::Family, out: &mut Vec<u8>) -> usize {
                let mut count = 0;
                $( if $crate::store::wire::pack::present!(family $(, $rule $version)?) {
                    <$type as $crate::store::wire::pack::Literal>::literal(family, out);
                    count += 1;
                } )*
                count
            }

            #[allow(unused_variables, unused_mut, reason = "a call may have no arguments")]
            fn longest(&self, family: $crate::store::wire::family::Family) -> usize {
                let mut longest = 0;
                $( if $crate::store::wire::pack::present!(family $(, $rule $version)?) {
                    longest = longest.max($crate::store::wire::pack::Pack::longest(&self.$field, family));
                } )*
                longest
            }

            #[allow(unused_variables, reason = "a call may have no arguments")]
            fn write(&self, to: &mut $crate::store::wire::pack::Writer<'_>) {
                $( if $crate::store::wire::pack::present!(to.family() $(, $rule $version)?) {
                    $crate::store::wire::pack::Pack::write(&self.$field, to);
                } )*
            }
        }
    };
}

pub(in crate::store::wire) use {present, readable, record, request, variant};
