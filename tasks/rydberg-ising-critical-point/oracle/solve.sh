# fpenv: one action a line
python3 /oracle/survey.py
python3 /oracle/calibrate.py
python3 /oracle/simulate.py
python3 /oracle/write.py
