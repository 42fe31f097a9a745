//! Numbers of the kernel that have names: unknown ones are kept, and print as what they are.

/// The type, its constants and their names. How it prints is added by [`named!`] and others.
macro_rules! names {
    ($(#[$doc:meta])* $name:ident($raw_type:ty) { $($(#[$item:meta])* $constant:ident = $raw:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $raw_type);

        #[allow(missing_docs, reason = "each constant is the C constant of the same name")]
        impl $name {
            $($(#[$item])* pub const $constant: Self = Self($raw);)*

            /// The name, for known values.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($raw => Some($text),)* _ => None }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
pub(crate) use names;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident else $other:literal { $($constants:tt)* }) => {
        $crate::uverbs::named::names! { $(#[$doc])* $name(u8) { $($constants)* } }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($other, " {}"), self.0),
                }
            }
        }
    };
}
pub(crate) use named;
