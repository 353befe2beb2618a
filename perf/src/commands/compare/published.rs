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
pub(super) struct Figure {
    pub kind: Kind,
    pub system: &'static str,
    pub what: &'static str,
    pub low: f64,
    pub high: f64,
    pub source: &'static str,
}

const fn figure(
    kind: Kind,
    system: &'static str,
    what: &'static str,
    (low, high): (f64, f64),
    source: &'static str,
) -> Figure {
    Figure {
        kind,
        system,
        what,
        low,
        high,
        source,
    }
}

const FRAMES: &str = "frame arithmetic: preamble, gap and frame check sequence counted";
const GRID: &str = "GRID, IEEE/ACM ToN 2023: 3 Tofino, 8 workers, Inception-V3";
const INART: &str = "InArt, WWW 2024: 2 Tofino, 6 workers, VGG19";

/// As they were published.
pub(super) const FIGURES: [Figure; 21] = [
    figure(
        Kind::Ceiling,
        "SwitchML on Tofino",
        "256 B payload",
        (0.771, 0.771),
        FRAMES,
    ),
    figure(
        Kind::Ceiling,
        "SwitchML on Tofino",
        "1024 B payload",
        (0.931, 0.931),
        FRAMES,
    ),
    figure(
        Kind::Ceiling,
        "ATP on Tofino",
        "248 B payload",
        (0.747, 0.747),
        FRAMES,
    ),
    figure(Kind::Rate, "GRID", "sending rate", (16.9, 16.9), GRID),
    figure(
        Kind::Rate,
        "ATP, in GRID's comparison",
        "sending rate",
        (12.0, 12.0),
        GRID,
    ),
    figure(
        Kind::Rate,
        "SwitchML, in GRID's comparison",
        "sending rate",
        (11.4, 11.4),
        GRID,
    ),
    figure(
        Kind::Rate,
        "no INA, in GRID's comparison",
        "sending rate",
        (8.0, 8.0),
        GRID,
    ),
    figure(Kind::Rate, "InArt", "sending rate", (26.2, 26.2), INART),
    figure(
        Kind::Rate,
        "ATP, in InArt's comparison",
        "sending rate",
        (19.25, 19.25),
        INART,
    ),
    figure(
        Kind::Rate,
        "no INA, in InArt's comparison",
        "sending rate",
        (15.4, 15.4),
        INART,
    ),
    figure(
        Kind::Rate,
        "A2TP on Tofino",
        "healthy job of two, 450 slots",
        (48.7, 50.3),
        "sample logs in A2TP's released code (EuroSys 2023)",
    ),
    figure(
        Kind::Rate,
        "A2TP on Tofino, straggler",
        "straggling job of two, 450 slots",
        (14.5, 16.7),
        "sample logs in A2TP's released code (EuroSys 2023)",
    ),
    figure(
        Kind::Rate,
        "ATP host stack",
        "about, one host",
        (46.0, 46.0),
        "comment in ATP's released code (NSDI 2021)",
    ),
    figure(
        Kind::Gain,
        "SwitchML",
        "training, up to",
        (5.5, 5.5),
        "NSDI 2021, abstract",
    ),
    figure(
        Kind::Gain,
        "ATP",
        "training throughput in a shared cluster",
        (1.38, 1.66),
        "NSDI 2021, abstract",
    ),
    figure(
        Kind::Gain,
        "NetReduce on FPGA",
        "AlexNet training",
        (1.7, 1.7),
        "ASPLOS 2023",
    ),
    figure(
        Kind::Gain,
        "ESA",
        "average job completion time to ATP's and SwitchML's, up to",
        (1.35, 1.35),
        "arXiv 2201.06398, abstract",
    ),
    figure(
        Kind::Gain,
        "Rina",
        "throughput to ATP's at the same cost of hardware, more than",
        (1.5, 1.5),
        "arXiv 2407.19721, abstract",
    ),
    figure(
        Kind::Note,
        "ATP on Tofino",
        "aggregators",
        (20_000.0, 20_000.0),
        "ATP's released code",
    ),
    figure(
        Kind::Note,
        "NetReduce on FPGA",
        "percent more capital cost, six 100G ports (109,025 LUT, 167,554 FF, 993 BRAM)",
        (2.40, 2.40),
        "ASPLOS 2023",
    ),
    figure(
        Kind::Note,
        "NetReduce on FPGA",
        "percent more power",
        (0.68, 0.68),
        "ASPLOS 2023",
    ),
];
