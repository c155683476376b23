package main

// The picture of a handoff: for each client, from before the announcement on, the longest command that was under way. Where the
// window is long, its middle is left out.

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// lineColors tell clients apart, also for those who see fewer colours.
var lineColors = map[string]color.Color{
	batonName:                     color.RGBA{0x00, 0x72, 0xb2, 0xff},
	"go-redis":                    color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	"go-redis, notifications off": color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	"rueidis":                     color.RGBA{0x00, 0x9e, 0x73, 0xff},
	"redigo":                      color.RGBA{0xa8, 0x55, 0x8b, 0xff},
}

var (
	alarm = color.RGBA{0xcc, 0x00, 0x00, 0xff}
	faint = color.RGBA{0xb0, 0xb0, 0xb0, 0xff}
	ink   = color.RGBA{0x30, 0x30, 0x30, 0xff}
)

const (
	plotWidth   = 11 * vg.Inch
	headHeight  = 0.9 * vg.Inch
	panelHeight = 1.45 * vg.Inch
	footHeight  = 0.3 * vg.Inch
	fastest     = 0.1    // ms: the lower end of the axis
	slowest     = 2000.0 // ms: the upper end
)

// A stretch is a part of the time after the announcement that is shown.
type stretch struct{ from, to time.Duration }

// stretches leave out what is calm.
func stretches(z sizes) []stretch {
	end := wholeWindow(z)
	if end < 6*time.Second {
		return []stretch{{-time.Second, end}}
	}
	return []stretch{{-time.Second, 2 * time.Second}, {z.window - time.Second, end}}
}

// plotHandoffs draws the normal scenario. Of each client it takes the run with the median stall.
func plotHandoffs(dir string, rs results, z sizes) error {
	var shown results
	for _, who := range slices.Backward(subjects) {
		if r := middling(rs.of(normal, who.name)); r != nil {
			shown = append(shown, r)
		}
	}
	if len(shown) == 0 {
		return nil
	}
	height := headHeight + vg.Length(len(shown))*panelHeight + footHeight
	for name, c := range map[string]interface {
		vg.CanvasWriterTo
		vg.CanvasSizer
	}{
		"handoff.svg": vgsvg.New(plotWidth, height),
		"handoff.png": vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(plotWidth, height), vgimg.UseDPI(120))},
	} {
		drawHandoffs(draw.New(c), shown, z)
		if err := writePicture(filepath.Join(dir, name), c); err != nil {
			return err
		}
	}
	return nil
}

func writePicture(path string, c io.WriterTo) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := c.WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}

// middling is the run with the median stall, nil of none.
func middling(rs results) *handoffRun {
	if len(rs) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(rs), func(a, b *handoffRun) int {
		return int(a.tally.after - b.tally.after)
	})
	return sorted[(len(sorted)-1)/2]
}

func drawHandoffs(c draw.Canvas, shown results, z sizes) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	drawHead(c, z)
	parts := stretches(z)
	for i, r := range shown {
		row := draw.Crop(c, 0, 0, footHeight+vg.Length(len(shown)-1-i)*panelHeight, -headHeight-vg.Length(i)*panelHeight)
		drawRow(row, r, parts, z)
	}
	label(c, "seconds after MOVING", vg.Point{X: c.Min.X + plotWidth/2, Y: c.Min.Y + 6}, 10, ink, draw.XCenter)
}

func drawHead(c draw.Canvas, z sizes) {
	left := c.Min.X + 10
	label(c, "A Redis server moves, under full load", vg.Point{X: left, Y: c.Max.Y - 20}, 16, color.Black, draw.XLeft)
	for i, line := range []string{
		fmt.Sprintf("How long the slowest command under way took, with %d callers that never pause. A flat top is one stall, from its beginning "+
			"to its end.", z.callers),
		fmt.Sprintf("At 0 s the server announces that it moves (MOVING); %.0f s later it closes its sockets.", z.window.Seconds()),
	} {
		label(c, line, vg.Point{X: left, Y: c.Max.Y - 38 - vg.Length(i)*14}, 10, ink, draw.XLeft)
	}
	label(c, "× commands failed", vg.Point{X: c.Max.X - 12, Y: c.Max.Y - 52}, 10, alarm, draw.XRight)
	label(c, "last command on an old connection", vg.Point{X: c.Max.X - 120, Y: c.Max.Y - 52}, 10, ink, draw.XRight)
	c.DrawGlyph(draw.GlyphStyle{Color: ink, Radius: 4, Shape: draw.PyramidGlyph{}}, vg.Point{X: c.Max.X - 285, Y: c.Max.Y - 50})
}

func drawRow(c draw.Canvas, r *handoffRun, parts []stretch, z sizes) {
	const titleHeight = 14
	label(c, r.subject, vg.Point{X: c.Min.X + 52, Y: c.Max.Y - 10}, 12, lineColors[r.subject], draw.XLeft)
	label(c, caption(r), vg.Point{X: c.Max.X - 12, Y: c.Max.Y - 10}, 10, ink, draw.XRight)
	var total time.Duration
	for _, s := range parts {
		total += s.to - s.from
	}
	const axis, gap = 52, 16 // for the labels at the left, and between two parts
	scale := (c.Size().X - axis - vg.Length(len(parts))*gap) / vg.Length(total)
	x := c.Min.X
	for i, s := range parts {
		width := vg.Length(s.to-s.from) * scale
		if i == 0 {
			width += axis
		}
		panel := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: c.Min.Y}, Max: vg.Point{X: x + width, Y: c.Max.Y - titleHeight}}}
		newPanel(r, s, z, i == 0).Draw(panel)
		x += width + gap
	}
}

// caption is what the line cannot show.
func caption(r *handoffRun) string {
	return fmt.Sprintf("%s commands, %s failed, %s executed twice; longest %s ms (%s ms in as much time before MOVING)",
		number(r.figures[figureCommands]), number(r.figures[figureFailed]), number(r.figures[figureTwice]),
		number(r.figures[figureStall]), number(r.figures[figureFloor]))
}

func newPanel(r *handoffRun, s stretch, z sizes, first bool) *plot.Plot {
	p := plot.New()
	p.X.Min, p.X.Max = s.from.Seconds(), s.to.Seconds()
	p.Y.Min, p.Y.Max = fastest, slowest
	p.Y.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(secondTicks)
	p.Y.Tick.Marker = plot.TickerFunc(func(_, _ float64) []plot.Tick { return decadeTicks(first) })
	p.Y.Padding, p.X.Padding = 0, 0
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color, a.Tick.Label.Color = faint, faint, ink
		a.Tick.Label.Font = sans(9)
	}
	if !first {
		p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0
	}
	p.Add(grid())
	for at, name := range map[time.Duration]string{0: "MOVING", z.window: "sockets close"} {
		if at > s.from && at < s.to {
			p.Add(mark(at, name))
		}
	}
	p.Add(line(r, s), failures(r, s))
	if last, known := r.figures[figureLastOnOld]; known && last >= s.from.Seconds()*1e3 && last <= s.to.Seconds()*1e3 {
		p.Add(&plotter.Scatter{
			XYs:        plotter.XYs{{X: last / 1e3, Y: 1.6 * fastest}},
			GlyphStyle: draw.GlyphStyle{Color: lineColors[r.subject], Radius: 4, Shape: draw.PyramidGlyph{}},
		})
	}
	return p
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Width = 0
	g.Horizontal.Color, g.Horizontal.Width = color.Gray{0xe4}, 0.5
	return g
}

// mark is a vertical line with a name.
func mark(at time.Duration, name string) plot.Plotter {
	return plotFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, _ := p.Transforms(&c)
		x := trX(at.Seconds())
		c.StrokeLine2(draw.LineStyle{Color: ink, Width: 0.8, Dashes: []vg.Length{3, 3}}, x, c.Min.Y, x, c.Max.Y)
		label(c, name, vg.Point{X: x + 3, Y: c.Max.Y - 9}, 9, ink, draw.XLeft)
	})
}

// plotFunc is a function that draws into a panel.
type plotFunc func(c draw.Canvas, p *plot.Plot)

func (f plotFunc) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }

// heightOf keeps to the axis.
func heightOf(d time.Duration) float64 { return min(max(milliseconds(d), fastest), slowest) }

func line(r *handoffRun, s stretch) plot.Plotter {
	var points plotter.XYs
	for _, m := range r.tally.over(s.from, s.to) {
		points = append(points, plotter.XY{X: m.at.Seconds(), Y: heightOf(m.longest)})
	}
	return &plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: lineColors[r.subject], Width: 1}}
}

// failures are a cross, and how many, wherever commands failed.
func failures(r *handoffRun, s stretch) plot.Plotter {
	const apart = 100 * time.Millisecond // what is closer has one cross
	var crosses []moment
	for _, m := range r.tally.over(s.from, s.to) {
		switch n := len(crosses); {
		case m.failed == 0:
		case n > 0 && m.at < crosses[n-1].at+apart:
			crosses[n-1].failed += m.failed
		default:
			crosses = append(crosses, m)
		}
	}
	return plotFunc(func(c draw.Canvas, p *plot.Plot) {
		trX, trY := p.Transforms(&c)
		for _, m := range crosses {
			at := vg.Point{X: trX(m.at.Seconds()), Y: trY(heightOf(m.longest))}
			c.DrawGlyph(draw.GlyphStyle{Color: alarm, Radius: 5, Shape: draw.CrossGlyph{}}, at)
			label(c, thousands(int64(m.failed))+" failed", vg.Point{X: at.X + 7, Y: at.Y + 7}, 9, alarm, draw.XLeft)
		}
	})
}

func secondTicks(from, to float64) (ticks []plot.Tick) {
	for v := int(from); v <= int(to); v++ {
		ticks = append(ticks, plot.Tick{Value: float64(v), Label: fmt.Sprint(v)})
	}
	return ticks
}

func decadeTicks(named bool) (ticks []plot.Tick) {
	for _, t := range []plot.Tick{
		{Value: 0.1, Label: "0.1 ms"}, {Value: 1, Label: "1 ms"}, {Value: 10, Label: "10 ms"}, {Value: 100, Label: "100 ms"}, {Value: 1000, Label: "1 s"},
	} {
		if !named {
			t.Label = " "
		}
		ticks = append(ticks, t)
	}
	return ticks
}

func label(c draw.Canvas, what string, at vg.Point, size vg.Length, of color.Color, align draw.XAlignment) {
	c.FillText(text.Style{Color: of, Font: sans(size), XAlign: align, Handler: plot.DefaultTextHandler}, at, what)
}

func sans(size vg.Length) font.Font {
	f := font.From(plot.DefaultFont, size)
	f.Variant = "Sans"
	return f
}
