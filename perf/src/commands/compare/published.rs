//! Figures that others published of their systems, and where.

/// What a figure is, so that only like stands beside like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Share of a link's rate that payload can have: arithmetic of the frames.
    Ceiling,
    /// What a host sends or a job gets, in Gbit/s.
    Rate,
    /// How many times faster than what the authors compare with.
    Gain,
    /// Anything else that is said in words.
    Note,
}

/// One figure, or a range of them.
#[derive(Debug)]
pub(super) struct Figure {
    pub kind: Kind,
    pub system: &'static str,
    pub what: &'static str,
    pub low: f64,
    pub high: f64,
    pub source: &'static str,
}

/// All figures: kind | system | what | least | most | source.
const PUBLISHED: &str = include_str!("published.txt");

/// Them, as they were published; shares of a link in percent.
pub(super) fn figures() -> impl Iterator<Item = Figure> {
    PUBLISHED.lines().filter_map(|line| {
        let mut fields = line.split(" | ");
        let mut field = || fields.next();
        Some(Figure {
            kind: match field()? {
                "ceiling" => Kind::Ceiling,
                "rate" => Kind::Rate,
                "gain" => Kind::Gain,
                "note" => Kind::Note,
                _ => return None,
            },
            system: field()?,
            what: field()?,
            low: field()?.parse().ok()?,
            high: field()?.parse().ok()?,
            source: field()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_figure() {
        assert_eq!(figures().count(), PUBLISHED.lines().count());
        assert!(figures().all(|figure| figure.low <= figure.high && !figure.source.is_empty()));
    }
}
