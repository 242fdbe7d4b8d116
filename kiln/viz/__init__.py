"""What a user looks at: `graph` draws the graph behind a tensor."""

from kiln.viz.drawing import Drawing as Drawing
from kiln.viz.drawing import graph as graph
