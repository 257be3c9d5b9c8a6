//! One Metric: its names, its data and how the data is to be read.
//!
//! The data is a oneof whose last member wins and whose parts merge, and temporality may follow the
//! points it applies to: so a Metric is laid open first and its points are read after.

use crate::lanes::{text, Lanes};
use crate::refusal::Scan;
use crate::strings::{Strings, NO_STRING};
use crate::wire::{length, varint, Reader};

const NAME: u32 = length(1);
const DESCRIPTION: u32 = length(2);
const UNIT: u32 = length(3);
const GAUGE: u32 = length(5);
const SUM: u32 = length(7);
const HISTOGRAM: u32 = length(9);
const EXPONENTIAL: u32 = length(10);
const SUMMARY: u32 = length(11);

const TEMPORALITY: u32 = varint(2);
const MONOTONIC: u32 = varint(3);

/// The data type of a metric, OTLP's oneof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum PointKind {
    Gauge = 0,
    Sum = 1,
    Histogram = 2,
    ExponentialHistogram = 3,
    Summary = 4,
}

const UNSPECIFIED: u8 = 0;
const CUMULATIVE: u8 = 2;

/// A batch's metrics, one entry a Metric message that has data.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct MetricTable {
    pub name: Vec<i32>,
    pub unit: Vec<i32>,
    pub description: Vec<i32>,
    pub kind: Vec<u8>,
    pub temporality: Vec<u8>,
    pub monotonic: Vec<bool>,
}

/// How the points of a metric are to be read.
#[derive(Clone, Copy, PartialEq)]
pub struct Shape {
    pub kind: PointKind,
    pub temporality: u8,
    pub monotonic: bool,
}

impl Shape {
    /// Whether the points mean nothing: a sum or a histogram since nobody knows when.
    pub fn is_unspecified(&self) -> bool {
        !matches!(self.kind, PointKind::Gauge | PointKind::Summary)
            && self.temporality == UNSPECIFIED
    }
}

/// A Metric laid open.
#[derive(Default)]
pub struct Metric<'a> {
    pub name: &'a [u8],
    pub unit: &'a [u8],
    pub description: &'a [u8],
    pub kind: Option<PointKind>,
    /// The parts of its data.
    pub data: Vec<&'a [u8]>,
}

impl<'a> Metric<'a> {
    /// Reads a Metric. Data that another member of the oneof replaced goes to `replaced`.
    pub fn read(
        &mut self,
        raw: &'a [u8],
        mut replaced: impl FnMut(PointKind, &'a [u8]) -> Scan<()>,
    ) -> Scan<()> {
        (self.name, self.unit, self.description) = (&[], &[], &[]);
        self.kind = None;
        self.data.clear();
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            let kind = match tag {
                NAME => {
                    self.name = reader.bytes()?;
                    continue;
                }
                DESCRIPTION => {
                    self.description = reader.bytes()?;
                    continue;
                }
                UNIT => {
                    self.unit = reader.bytes()?;
                    continue;
                }
                GAUGE => PointKind::Gauge,
                SUM => PointKind::Sum,
                HISTOGRAM => PointKind::Histogram,
                EXPONENTIAL => PointKind::ExponentialHistogram,
                SUMMARY => PointKind::Summary,
                _ => {
                    reader.skip(tag, 3)?;
                    continue;
                }
            };
            if let Some(before) = self.kind.filter(|&before| before != kind) {
                for part in self.data.drain(..) {
                    replaced(before, part)?;
                }
            }
            self.kind = Some(kind);
            self.data.push(reader.bytes()?);
        }
        Ok(())
    }

    /// Temporality and monotonicity; a summary is cumulative, a gauge has no temporality.
    pub fn shape(&self, kind: PointKind) -> Scan<Shape> {
        let (mut temporality, mut monotonic) = (0, 0);
        for part in &self.data {
            let mut reader = Reader::new(part);
            while let Some(tag) = reader.tag()? {
                match tag {
                    TEMPORALITY => temporality = reader.varint()?,
                    MONOTONIC => monotonic = reader.varint()?,
                    _ => reader.skip(tag, 4)?,
                }
            }
        }
        Ok(Shape {
            kind,
            temporality: match (kind, temporality as i32) {
                (PointKind::Gauge, _) => UNSPECIFIED,
                (PointKind::Summary, _) => CUMULATIVE,
                (_, known @ (1 | 2)) => known as u8,
                _ => UNSPECIFIED,
            },
            monotonic: kind == PointKind::Sum && monotonic != 0,
        })
    }
}

/// What a metric is called and what it adds to its series keys.
pub struct Identity<'a> {
    name: &'a [u8],
    unit: &'a [u8],
    description: &'a [u8],
    shape: Shape,
    /// String ids of the three texts, and how many of them had invalid UTF-8.
    pub name_id: i32,
    pub unit_id: i32,
    pub description_id: i32,
    pub invalid: u64,
    /// The lanes, for the scope of this name and version.
    lanes: Option<(Lanes, &'a [u8], &'a [u8])>,
}

impl<'a> Identity<'a> {
    /// Of a metric without texts.
    pub fn new(shape: Shape) -> Self {
        Self {
            name: &[],
            unit: &[],
            description: &[],
            shape,
            name_id: NO_STRING,
            unit_id: NO_STRING,
            description_id: NO_STRING,
            invalid: 0,
            lanes: None,
        }
    }

    /// Takes over what `metric` says, which costs little if it says the same.
    pub fn become_that_of(&mut self, metric: &Metric<'a>, shape: Shape, strings: &mut Strings<'a>) {
        let is_same = self.name == metric.name
            && self.unit == metric.unit
            && self.description == metric.description;
        if !is_same {
            (self.name, self.unit, self.description) =
                (metric.name, metric.unit, metric.description);
            let [name, unit, description] =
                [self.name, self.unit, self.description].map(|raw| strings.field(raw));
            (self.name_id, self.unit_id, self.description_id) = (name.id, unit.id, description.id);
            self.invalid = [name, unit, description]
                .iter()
                .map(|found| u64::from(found.invalid))
                .sum();
        }
        if !is_same || self.shape != shape {
            self.shape = shape;
            self.lanes = None;
        }
    }

    /// The metric's share of a series key.
    pub fn lanes(&mut self, scope: &'a [u8], version: &'a [u8], out: &mut Vec<u8>) -> Lanes {
        if let Some((lanes, known_scope, known_version)) = self.lanes {
            if known_scope == scope && known_version == version {
                return lanes;
            }
        }
        let Shape {
            kind,
            temporality,
            monotonic,
        } = self.shape;
        out.clear();
        text(out, self.name);
        text(out, self.unit);
        out.extend_from_slice(&[kind as u8, temporality, u8::from(monotonic)]);
        text(out, scope);
        text(out, version);
        let lanes = Lanes::of(out);
        self.lanes = Some((lanes, scope, version));
        lanes
    }
}
