//! A primal simplex for linear programs that grow: rows and columns are added while it is solved.
//!
//! Maximises `c x` with `A x <= b`, `x >= 0`, from a point that is feasible. The inverse of the
//! basis is kept whole, which suits some hundred rows. Dual values are exact, which is why it
//! stands beside a general solver: prices of resources come from them.

const TOLERANCE: f64 = 1e-9;
/// Pivots without progress after which the lowest index enters, so that none cycles.
const STALLED: usize = 40;
/// Pivots after which the search ends in any case.
const PIVOTS: usize = 20_000;

/// What is in the basis.
#[derive(Clone, Copy, PartialEq)]
enum Basic {
    Slack(usize),
    Column(usize),
}

struct Column {
    cost: f64,
    /// Row and coefficient.
    entries: Vec<(usize, f64)>,
    in_basis: bool,
}

/// A linear program and its current basic solution.
#[derive(Default)]
pub struct Simplex {
    columns: Vec<Column>,
    /// The inverse of the basis, by column.
    inverse: Vec<Vec<f64>>,
    basis: Vec<Basic>,
    /// Values of the basis.
    value: Vec<f64>,
    slack_in_basis: Vec<bool>,
}

impl Simplex {
    /// Adds a row, which the current solution must satisfy, and returns its index.
    pub fn add_row(&mut self, coefficients: &[(usize, f64)], limit: f64) -> usize {
        let row = self.inverse.len();
        let mut value = limit;
        let mut last = vec![0.0; row];
        for &(column, coefficient) in coefficients {
            self.columns[column].entries.push((row, coefficient));
            let mut basis = self.basis.iter();
            if let Some(at) = basis.position(|basic| *basic == Basic::Column(column)) {
                value -= coefficient * self.value[at];
                for (cell, inverse) in last.iter_mut().zip(&self.inverse) {
                    *cell -= coefficient * inverse[at];
                }
            }
        }
        for (inverse, cell) in self.inverse.iter_mut().zip(last) {
            inverse.push(cell);
        }
        let mut unit = vec![0.0; row + 1];
        unit[row] = 1.0;
        self.inverse.push(unit);
        self.basis.push(Basic::Slack(row));
        self.slack_in_basis.push(true);
        self.value.push(value.max(0.0));
        row
    }

    /// Adds a variable at 0, and returns its index.
    pub fn add_column(&mut self, cost: f64, entries: Vec<(usize, f64)>) -> usize {
        self.columns.push(Column {
            cost,
            entries,
            in_basis: false,
        });
        self.columns.len() - 1
    }

    /// Changes the objective's coefficient of a variable.
    pub fn set_cost(&mut self, column: usize, cost: f64) {
        self.columns[column].cost = cost;
    }

    /// The value of a variable.
    pub fn value_of(&self, column: usize) -> f64 {
        let at = self
            .basis
            .iter()
            .position(|basic| *basic == Basic::Column(column));
        at.map_or(0.0, |at| self.value[at].max(0.0))
    }

    /// The dual values, by row.
    pub fn duals(&self) -> Vec<f64> {
        let costs = self
            .basis
            .iter()
            .enumerate()
            .filter_map(|(at, basic)| match *basic {
                Basic::Column(column) => Some((at, self.columns[column].cost)),
                Basic::Slack(_) => None,
            });
        let costs: Vec<_> = costs.filter(|of| of.1 != 0.0).collect();
        let dual = |inverse: &Vec<f64>| costs.iter().map(|&(at, cost)| cost * inverse[at]).sum();
        self.inverse.iter().map(dual).collect()
    }

    /// Solves from the current solution; false if the limit of pivots came first.
    pub fn solve(&mut self) -> bool {
        let mut stalled = 0;
        for _ in 0..PIVOTS {
            let Some(entering) = self.entering(stalled > STALLED) else {
                return true;
            };
            let direction = self.direction(entering);
            let Some((leaving, step)) = self.leaving(&direction) else {
                // Unbounded: the callers' programs have a row for each variable.
                return false;
            };
            stalled = if step > TOLERANCE { 0 } else { stalled + 1 };
            self.pivot(entering, leaving, &direction, step);
        }
        false
    }

    fn entering(&self, is_lowest: bool) -> Option<Basic> {
        let duals = self.duals();
        let columns = self.columns.iter().enumerate();
        let columns = columns
            .filter(|(_, column)| !column.in_basis)
            .map(|(index, column)| {
                let paid: f64 = column
                    .entries
                    .iter()
                    .map(|&(row, cell)| duals[row] * cell)
                    .sum();
                (Basic::Column(index), column.cost - paid)
            });
        let slacks = self
            .slack_in_basis
            .iter()
            .enumerate()
            .filter(|(_, is_basic)| !**is_basic);
        let slacks = slacks.map(|(row, _)| (Basic::Slack(row), -duals[row]));
        let mut candidates = columns.chain(slacks).filter(|(_, gain)| *gain > TOLERANCE);
        if is_lowest {
            return candidates.next().map(|(basic, _)| basic);
        }
        candidates
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(basic, _)| basic)
    }

    fn direction(&self, entering: Basic) -> Vec<f64> {
        let column = match entering {
            Basic::Column(column) => &self.columns[column].entries,
            Basic::Slack(row) => return self.inverse[row].clone(),
        };
        let mut direction = vec![0.0; self.inverse.len()];
        for &(row, cell) in column {
            for (slope, inverse) in direction.iter_mut().zip(&self.inverse[row]) {
                *slope += cell * inverse;
            }
        }
        direction
    }

    fn leaving(&self, direction: &[f64]) -> Option<(usize, f64)> {
        let mut best: Option<(usize, f64)> = None;
        for (row, &slope) in direction.iter().enumerate() {
            if slope <= TOLERANCE {
                continue;
            }
            let step = self.value[row].max(0.0) / slope;
            let is_better = best.is_none_or(|(at, least)| {
                step < least - TOLERANCE || (step < least + TOLERANCE && slope > direction[at])
            });
            if is_better {
                best = Some((row, step));
            }
        }
        best
    }

    fn pivot(&mut self, entering: Basic, leaving: usize, direction: &[f64], step: f64) {
        for (value, slope) in self.value.iter_mut().zip(direction) {
            *value = (*value - step * slope).max(0.0);
        }
        self.value[leaving] = step;
        for inverse in &mut self.inverse {
            if inverse[leaving] != 0.0 {
                let cell = inverse[leaving] / direction[leaving];
                for (other, slope) in inverse.iter_mut().zip(direction) {
                    *other -= slope * cell;
                }
                inverse[leaving] = cell;
            }
        }
        for (basic, is_in) in [(self.basis[leaving], false), (entering, true)] {
            match basic {
                Basic::Slack(row) => self.slack_in_basis[row] = is_in,
                Basic::Column(column) => self.columns[column].in_basis = is_in,
            }
        }
        self.basis[leaving] = entering;
    }
}
