//! The table of metrics: name, kind, unit, help and labels of every figure that the switch counts.
//!
//! [`metrics!`](crate::metrics!) declares a struct of counters, one row a field. From the row come
//! the field, its [`Metric`], its addition over cores, its value in reports and its line in the
//! documentation. A field is a plain integer: to count costs what it costs without the table.
//!
//! Structs may have `parts`: fields that are sets of metrics with rows of their own.

/// What a value does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows until the switch ends.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl Kind {
    /// The name, as OpenMetrics has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// How the values of cores become that of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}

/// What a value counts. A metric with a unit has its name at the end of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Events or things.
    None,
    /// Ethernet frames.
    Frames,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Cycles of the time-stamp counter.
    Cycles,
}

impl Unit {
    /// The name; empty if there is none.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Frames => "frames",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Cycles => "cycles",
        }
    }
}

/// A label of a metric that has a value for each of a fixed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values, in the order of the array that is counted in; empty if only the data knows them.
    pub values: &'static [&'static str],
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The name for exporters, without the prefix `tally_`.
    pub name: &'static str,
    /// The field, which is its name in JSON reports.
    pub key: &'static str,
    /// What it does over time.
    pub kind: Kind,
    /// How the values of cores become that of the switch.
    pub total: Total,
    /// What it counts.
    pub unit: Unit,
    /// How many of the report's values are one of the unit: 1e6 of microseconds.
    pub scale: f64,
    /// One or two sentences on what it counts.
    pub help: &'static str,
    /// Labels of the set that it belongs to.
    pub set: &'static [&'static str],
    /// The label of its own, if it has a value for each of several things.
    pub by: Option<&'static Label>,
}

impl Metric {
    /// The names of all its labels.
    pub fn labels(&self) -> impl Iterator<Item = &'static str> {
        let by = self.by.map(|label| label.name);
        self.set.iter().copied().chain(by)
    }
}

/// A value, in the unit of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of what is counted.
    Integer(u64),
    /// Of what is measured.
    Real(f64),
}

impl Number {
    /// Whether it is 0.
    #[must_use]
    pub fn is_zero(self) -> bool {
        match self {
            Self::Integer(n) => n == 0,
            Self::Real(x) => x.abs() < f64::MIN_POSITIVE,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(n) => write!(f, "{n}"),
            Self::Real(x) => write!(f, "{x:.3}"),
        }
    }
}

/// The type of a row's field.
pub trait Figure: Clone {
    /// Where it begins.
    fn zero() -> Self;

    /// Takes in the value of another core.
    fn combine(&mut self, other: &Self, total: Total);

    /// Calls `f` with each value, and that of the row's label if it has one.
    fn visit(&self, by: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number));

    /// Sets each value to what `next` says.
    fn fill(&mut self, by: Option<&Label>, next: &mut dyn FnMut() -> u64);
}

macro_rules! integer {
    ($($type:ty),+) => {$(
        impl Figure for $type {
            fn zero() -> Self {
                0
            }

            #[inline]
            fn combine(&mut self, other: &Self, total: Total) {
                *self = match total {
                    Total::Sum => *self + other,
                    Total::Max => (*self).max(*other),
                };
            }

            #[allow(clippy::cast_lossless, reason = "`usize` has no lossless conversion")]
            fn visit(&self, _: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
                f(None, Number::Integer(*self as u64));
            }

            fn fill(&mut self, _: Option<&Label>, next: &mut dyn FnMut() -> u64) {
                *self = next() as Self;
            }
        }
    )+};
}

integer!(u8, u16, u32, u64, usize);

impl Figure for f64 {
    fn zero() -> Self {
        0.0
    }

    fn combine(&mut self, other: &Self, total: Total) {
        *self = match total {
            Total::Sum => *self + other,
            Total::Max => self.max(*other),
        };
    }

    fn visit(&self, _: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
        f(None, Number::Real(*self));
    }

    fn fill(&mut self, _: Option<&Label>, next: &mut dyn FnMut() -> u64) {
        *self = next() as Self;
    }
}

/// A value that may be unknown.
impl<T: Figure> Figure for Option<T> {
    fn zero() -> Self {
        None
    }

    fn combine(&mut self, other: &Self, total: Total) {
        match (self, other) {
            (Some(value), Some(other)) => value.combine(other, total),
            (value, other) => {
                if value.is_none() {
                    value.clone_from(other);
                }
            }
        }
    }

    fn visit(&self, by: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
        if let Some(value) = self {
            value.visit(by, f);
        }
    }

    fn fill(&mut self, by: Option<&Label>, next: &mut dyn FnMut() -> u64) {
        self.get_or_insert_with(T::zero).fill(by, next);
    }
}

/// A value for each of a label's.
impl<const N: usize> Figure for [u64; N] {
    fn zero() -> Self {
        [0; N]
    }

    fn combine(&mut self, other: &Self, total: Total) {
        for (mine, theirs) in self.iter_mut().zip(other) {
            mine.combine(theirs, total);
        }
    }

    fn visit(&self, by: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
        let names = by.map_or(&[][..], |label| label.values);
        assert_eq!(
            names.len(),
            N,
            "a label has a value for each that is counted"
        );
        for (name, n) in names.iter().zip(self) {
            f(Some(name), Number::Integer(*n));
        }
    }

    fn fill(&mut self, _: Option<&Label>, next: &mut dyn FnMut() -> u64) {
        self.fill_with(next);
    }
}

/// A value for each name that the data has.
impl Figure for std::collections::BTreeMap<String, u64> {
    fn zero() -> Self {
        Self::new()
    }

    fn combine(&mut self, other: &Self, total: Total) {
        for (name, n) in other {
            self.entry(name.clone()).or_default().combine(n, total);
        }
    }

    fn visit(&self, _: Option<&Label>, f: &mut dyn FnMut(Option<&str>, Number)) {
        for (name, n) in self {
            f(Some(name), Number::Integer(*n));
        }
    }

    fn fill(&mut self, by: Option<&Label>, next: &mut dyn FnMut() -> u64) {
        let names = by.map_or(&[][..], |label| label.values);
        let names = if names.is_empty() {
            &["one", "two"]
        } else {
            names
        };
        *self = names
            .iter()
            .map(|&name| (name.to_owned(), next()))
            .collect();
    }
}

/// A struct that [`metrics!`](crate::metrics!) has declared.
pub trait MetricSet {
    /// Its rows, in the order of its fields; without those of its parts.
    const TABLE: &'static [Metric];

    /// Takes in the values of another core.
    fn add(&mut self, other: &Self);

    /// Calls `f` with each value, and that of the row's label if it has one; parts come last.
    fn visit(&self, f: &mut dyn FnMut(&'static Metric, Option<&str>, Number));

    /// Sets each value to what `next` says, in the order of [`visit`](Self::visit).
    fn fill(&mut self, next: &mut dyn FnMut() -> u64);

    /// The rows that have one integer, by key.
    fn named(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.visit(&mut |metric, label, number| {
            if let (None, Number::Integer(n)) = (label, number) {
                all.push((metric.key, n));
            }
        });
        all
    }
}

/// A set that may be missing.
impl<T: MetricSet> MetricSet for Option<T>
where
    T: Default,
{
    const TABLE: &'static [Metric] = T::TABLE;

    fn add(&mut self, other: &Self) {
        if let Some(other) = other {
            self.get_or_insert_default().add(other);
        }
    }

    fn visit(&self, f: &mut dyn FnMut(&'static Metric, Option<&str>, Number)) {
        if let Some(set) = self {
            set.visit(f);
        }
    }

    fn fill(&mut self, next: &mut dyn FnMut() -> u64) {
        self.get_or_insert_default().fill(next);
    }
}

/// Help from the lines of a doc comment.
#[must_use]
pub const fn help(lines: &'static str) -> &'static str {
    lines.trim_ascii()
}

/// Declares a struct of metrics, one row a field.
///
/// ```
/// use tally_engine::metrics::{Label, MetricSet as _};
///
/// const LANE: Label = Label { name: "lane", values: &["slow", "fast"] };
///
/// tally_engine::metrics! {
///     /// What a toll gate does.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub struct Gate, labels ["gate"] {
///         /// Cars let through.
///         pub cars: [u64; 2] = counter "gate_cars" by LANE;
///         /// Cars in the longest queue so far.
///         pub queue_max: u32 = maximum "gate_queue_max";
///         /// Toll taken.
///         pub toll_bytes: u64 = counter "gate_toll_bytes" in Bytes;
///     }
/// }
///
/// let mut gate = Gate { cars: [1, 2], queue_max: 7, toll_bytes: 3 };
/// gate.add(&gate.clone());
/// assert_eq!(gate, Gate { cars: [2, 4], queue_max: 7, toll_bytes: 6 });
/// assert_eq!(Gate::TABLE[0].help, "Cars let through.");
/// assert_eq!(Gate::TABLE[0].labels().collect::<Vec<_>>(), ["gate", "lane"]);
/// ```
///
/// A row is: help, field, type, kind, name. `in` gives the unit, with how many of the field's make
/// one (`in Seconds / 1e6`). `by` gives the label of an array. Kinds are `counter`, `gauge`, and
/// `maximum`: a gauge of which cores' largest value is the switch's.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        $vis:vis struct $set:ident, labels $labels:tt {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)+)])?
                pub $field:ident: $type:ty = $kind:ident $name:literal
                    $(in $unit:ident $(/ $scale:literal)?)? $(by $by:ident)?;
            )+
        }
        $(parts {
            $($(#[$part_meta:meta])* pub $part:ident: $part_type:ty;)+
        })?
    ) => {
        $(#[$meta])*
        $vis struct $set {
            $($(#[doc = $doc])+ $(#[serde($($serde)+)])? pub $field: $type,)+
            $($($(#[$part_meta])* pub $part: $part_type,)+)?
        }

        impl Default for $set {
            fn default() -> Self {
                Self {
                    $($field: $crate::metrics::Figure::zero(),)+
                    $($($part: Default::default(),)+)?
                }
            }
        }

        impl $crate::metrics::MetricSet for $set {
            const TABLE: &'static [$crate::metrics::Metric] = &[$(
                $crate::metrics::Metric {
                    name: $name,
                    key: stringify!($field),
                    kind: $crate::metrics!(@kind $kind),
                    total: $crate::metrics!(@total $kind),
                    unit: $crate::metrics!(@unit $($unit)?),
                    scale: $crate::metrics!(@scale $($($scale)?)?),
                    help: $crate::metrics::help(concat!($($doc),+)),
                    set: &$labels,
                    by: $crate::metrics!(@by $($by)?),
                },
            )+];

            fn add(&mut self, other: &Self) {
                $($crate::metrics::Figure::combine(
                    &mut self.$field,
                    &other.$field,
                    $crate::metrics!(@total $kind),
                );)+
                $($($crate::metrics::MetricSet::add(&mut self.$part, &other.$part);)+)?
            }

            fn visit(
                &self,
                f: &mut dyn FnMut(
                    &'static $crate::metrics::Metric,
                    Option<&str>,
                    $crate::metrics::Number,
                ),
            ) {
                let mut rows = Self::TABLE.iter();
                $(
                    if let Some(row) = rows.next() {
                        let mut of_row = |label: Option<&str>, number| f(row, label, number);
                        $crate::metrics::Figure::visit(&self.$field, row.by, &mut of_row);
                    }
                )+
                $($($crate::metrics::MetricSet::visit(&self.$part, f);)+)?
            }

            fn fill(&mut self, next: &mut dyn FnMut() -> u64) {
                $($crate::metrics::Figure::fill(
                    &mut self.$field,
                    $crate::metrics!(@by $($by)?),
                    next,
                );)+
                $($($crate::metrics::MetricSet::fill(&mut self.$part, next);)+)?
            }
        }
    };

    (@kind counter) => { $crate::metrics::Kind::Counter };
    (@kind gauge) => { $crate::metrics::Kind::Gauge };
    (@kind maximum) => { $crate::metrics::Kind::Gauge };
    (@total maximum) => { $crate::metrics::Total::Max };
    (@total $kind:ident) => { $crate::metrics::Total::Sum };
    (@unit) => { $crate::metrics::Unit::None };
    (@unit $unit:ident) => { $crate::metrics::Unit::$unit };
    (@scale) => { 1.0 };
    (@scale $scale:literal) => { $scale };
    (@by) => { None };
    (@by $by:ident) => { Some(&$by) };
}

#[cfg(test)]
mod tests;
