//! Tables of aligned columns, for terminals and pipes alike: plain text, no colour.

use std::fmt::{self, Display, Formatter};

/// Spaces between columns.
const GAP: usize = 2;

/// Which side of its column a cell is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a line of names above it.
#[derive(Clone, Debug, Default)]
pub struct Table {
    head: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// A table's columns: `columns!["job" left, "frames" right]`.
#[macro_export]
macro_rules! columns {
    ($($name:literal $side:ident),+ $(,)?) => {
        $crate::table::Table::new(vec![$(($name, $crate::columns!(@ $side))),+])
    };
    (@ left) => { $crate::table::Align::Left };
    (@ right) => { $crate::table::Align::Right };
}

impl Table {
    /// Without rows.
    #[must_use]
    pub fn new(head: Vec<(&'static str, Align)>) -> Self {
        let rows = Vec::new();
        Self { head, rows }
    }

    /// Adds a row, a cell for each column. Control characters would reach the terminal, and names
    /// and texts come from files and from the network: they become `?`.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.head.len(), "a cell for each column");
        self.rows
            .push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Text without control characters.
#[must_use]
pub fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = |cell: &str| cell.chars().count();
        let widths: Vec<_> = (self.head.iter().enumerate())
            .map(|(at, (name, _))| {
                let cells = self.rows.iter().map(|row| width(&row[at]));
                cells.chain([width(name)]).max().unwrap_or(0)
            })
            .collect();
        let mut line = |cells: Vec<&str>| {
            let mut out = String::new();
            for ((cell, &wide), (_, align)) in cells.iter().zip(&widths).zip(&self.head) {
                let fill = " ".repeat(wide - width(cell));
                out += &match align {
                    Align::Left => format!("{cell}{fill}"),
                    Align::Right => format!("{fill}{cell}"),
                };
                out += &" ".repeat(GAP);
            }
            writeln!(f, "{}", out.trim_end())
        };
        line(self.head.iter().map(|&(name, _)| name).collect())?;
        (self.rows.iter()).try_for_each(|row| line(row.iter().map(String::as_str).collect()))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = columns!["port" left, "frames" right, "text" left];
        assert!(table.is_empty());
        table.row(["a".into(), "1234567".into(), "µs".into()]);
        table.row(["longer".into(), "1".into(), String::new()]);
        let want = "port     frames  text\na       1234567  µs\nlonger        1\n";
        assert_eq!(table.to_string(), want);
    }

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        let mut table = columns!["name" left];
        table.row(["\u{1b}[2Jx\ny\u{7f}\u{9b}z".into()]);
        assert_eq!(table.to_string(), "name\n?[2Jx?y??z\n");
    }
}
