//! The words of an error and of what caused it.
//!
//! Some errors have the words of their cause in their own, and also say that it is their cause.
//! anyhow's `{:#}` then has the same errno twice.

use std::error::Error;

/// An error and its causes, from the outside in, without those whose words are there already.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Words(&'static str, Option<Box<Words>>);

    impl fmt::Display for Words {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Words {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|it| it as _)
        }
    }

    #[test]
    fn no_words_are_there_twice() {
        let errno = Words("Permission denied (os error 13)", None);
        let inner = Words(
            "socket: Permission denied (os error 13)",
            Some(Box::new(errno)),
        );
        let outer = Words("port a", Some(Box::new(inner)));
        assert_eq!(
            chain(&outer),
            "port a: socket: Permission denied (os error 13)"
        );
    }
}
