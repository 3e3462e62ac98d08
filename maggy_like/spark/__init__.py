"""Spark at hand: a session with the settings of this project, and a small cluster or server on one machine."""

from __future__ import annotations

from maggy_like.spark.java import ensure_java, find_java
from maggy_like.spark.servers.cluster import StandaloneCluster
from maggy_like.spark.servers.connect_server import ConnectServer
from maggy_like.spark.session import spark_session

__all__ = ["ConnectServer", "StandaloneCluster", "ensure_java", "find_java", "spark_session"]
