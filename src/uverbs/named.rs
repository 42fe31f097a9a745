//! Numbers of the kernel that have names: unknown ones are kept, and print as what they are.

macro_rules! named {
    ($(#[$doc:meta])* $name:ident else $other:literal { $($(#[$item:meta])* $constant:ident = $raw:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub u8);

        #[allow(missing_docs, reason = "each constant is the C constant of the same name")]
        impl $name {
            $($(#[$item])* pub const $constant: Self = Self($raw);)*

            /// The name, for known values.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($raw => Some($text),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($other, " {}"), self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
pub(crate) use named;
