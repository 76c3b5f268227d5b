from budget_exporter.cli import main

raise SystemExit(main())
